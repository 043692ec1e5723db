#include "tessera/dtensor/move/run_step.h"

#include <limits>
#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/move/hand_over.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

namespace {

using layout::ReduceOp;

struct Limits {
  at::Scalar lowest, highest;
};

Limits limits_of(c10::ScalarType type) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  switch (type) {
    case at::kBool: return {false, true};
    case at::kByte: return {0, std::numeric_limits<uint8_t>::max()};
    case at::kChar: return {std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max()};
    case at::kShort: return {std::numeric_limits<int16_t>::min(), std::numeric_limits<int16_t>::max()};
    case at::kInt: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case at::kLong: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    default: return {-inf, inf};
  }
}

// The value that a combination ignores.
at::Scalar identity(ReduceOp op, c10::ScalarType type) {
  switch (op) {
    case ReduceOp::kProd: return 1;
    case ReduceOp::kMax: return limits_of(type).lowest;
    case ReduceOp::kMin: return limits_of(type).highest;
    default: return 0;
  }
}

ReduceOp wire_op(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

bool reduces(Action action) { return action == Action::kAllReduce || action == Action::kReduceScatter; }

at::Tensor filled(const CompiledStep& step, const at::Tensor& local) {
  return at::full(step.result_sizes, identity(step.op, local.scalar_type()), local.options());
}

at::Tensor run_local(const CompiledStep& step, const at::Tensor& local) {
  switch (step.action) {
    case Action::kForget: return at::empty({0}, local.options());
    case Action::kSlice: return narrowed(local, step.slices);
    case Action::kFill: return filled(step, local);
    case Action::kPad: {
      at::Tensor result = filled(step, local);
      narrowed(result, step.slices).copy_(local);
      return result;
    }
    default: return local;
  }
}

// The part as it travels.
at::Tensor in_order(const CompiledStep& step, const at::Tensor& part) {
  return step.order.empty() ? part.contiguous() : part.permute(step.order).contiguous();
}

// One of these sizes that lies so, and as it is received.
struct Receiving {
  at::Tensor result, part;
};

Receiving empty_in_order(const CompiledStep& step, const at::TensorOptions& options) {
  std::vector<int64_t> sizes = step.result_sizes, back(step.order.size());
  for (size_t i = 0; i < step.order.size(); ++i) {
    sizes[i] = step.result_sizes[step.order[i]];
    back[step.order[i]] = static_cast<int64_t>(i);
  }
  const at::Tensor part = at::empty(sizes, options);
  return {step.order.empty() ? part : part.permute(back), part};
}

// Between stages of one rank, which run one after the other, the part waits in its own box.
IssuedStep issue_send(comm::RankContext& ctx, comm::Communicator& group, const CompiledStep& step,
                      const at::Tensor& local) {
  const bool gives = step.is_at_from && ctx.walk.runs(step.axis_name, step.from);
  const bool takes = step.is_at_to && ctx.walk.runs(step.axis_name, step.to);
  const int64_t tag = tag_between(ctx, step.from.stage, step.to.stage);
  IssuedStep issued;
  if (gives && takes) {
    issued.result = local;
  } else if (takes && step.is_at_from) {
    issued.result = taken_from_own(ctx, step, tag);
  } else if (takes) {
    auto [result, part] = empty_in_order(step, local.options());
    issued.result = std::move(result);
    issued.work = group.receive(std::move(part), step.from.coordinate(), tag);
  } else {
    issued.result = at::empty({0}, local.options());
  }
  if (gives && !takes && step.is_at_to) {
    ctx.own_messages.keep(tag, local);
  } else if (gives && !takes) {
    issued.sent = {in_order(step, local)};
    issued.work = group.send(issued.sent.front(), step.to.coordinate(), tag);
  }
  return issued;
}

// Whether this walk notes the step in the ledger: each rank notes what it does, and once what others do.
bool is_noted(const comm::Walk& walk, const CompiledStep& step) {
  if (layout::is_of_vocabulary(step.from.stage) || layout::is_of_vocabulary(step.to.stage)) {
    return false;  // what goes to a part and comes from it is noted in its walk
  }
  if (step.action == Action::kSend && (step.is_at_from || step.is_at_to)) {
    return walk.runs(step.axis_name, step.is_at_from ? step.from : step.to);
  }
  if (step.action == Action::kSend || !step.is_at_home) {
    return walk.keeps_books;
  }
  return walk.runs(step.home_axis, step.home);
}

// Ranks that are elsewhere in the program do not come to a collective.
void check_meets(const comm::RankContext& ctx, const CompiledStep& step, const char* op) {
  const bool meets_stages = step.axis < 0 || step.axis_name == ctx.walk.axis;
  const bool is_met = !meets_stages || ctx.walk.stage == layout::kHead;
  TESSERA_CHECK(!ctx.walk.is_scheduled || step.action == Action::kSend || is_met, "[", op,
                "] reads a value of another stage, by a ", step.collective, " over ", step.axis_name,
                ", inside of a pipeline's schedule (rank ", ctx.rank, ", micro-batch ", ctx.walk.micro_batch,
                "): the ranks of other stages are elsewhere in the program. Read it after the step, or run the step "
                "without a schedule.");
}

IssuedStep issue(comm::Communicator& group, const CompiledStep& step, const at::Tensor& local) {
  IssuedStep issued;
  if (step.action == Action::kAllReduce) {
    issued.result = local.clone(at::MemoryFormat::Contiguous);
    issued.work = group.all_reduce(issued.result, wire_op(step.op));
    return issued;
  }
  if (step.action == Action::kBroadcast) {
    issued.result = step.gives_part ? local : at::empty(step.result_sizes, local.options());
    issued.sent = {issued.result.contiguous()};
    issued.work = group.broadcast(issued.sent.front(), step.root);
    return issued;
  }
  if (step.action == Action::kAllGather) {
    issued.sent = {local.contiguous()};
  } else {
    issued.sent = packed(step.sends, local, group.size());
  }
  issued.result = at::empty(step.result_sizes, local.options());
  if (step.action == Action::kReduceScatter) {
    issued.work = group.reduce_scatter(issued.result, issued.sent, wire_op(step.op));
    return issued;
  }
  issued.received = room_for(step.receives, issued.result, group.size());
  issued.work = step.action == Action::kAllGather ? group.all_gather(issued.received, issued.sent.front())
                                                  : group.all_to_all(issued.received, issued.sent);
  return issued;
}

}  // namespace

IssuedStep issue_step(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local) {
  const at::Tensor part = step.taken_apart.empty() ? local : local.reshape(step.taken_apart);
  if (is_local(step.action)) {
    return {.result = run_local(step, part)};
  }
  comm::Communicator& group = step.axis >= 0 ? ctx.axis(step.mesh, step.axis) : ctx.whole(step.mesh);
  return step.action == Action::kSend ? issue_send(ctx, group, step, part) : issue(group, step, part);
}

at::Tensor finish_step(const CompiledStep& step, IssuedStep issued) {
  if (issued.work) {
    issued.work->wait();
  }
  if (!issued.received.empty()) {
    unpack(step.receives, issued.received, issued.result);
  }
  if (reduces(step.action) && step.op == ReduceOp::kAvg) {
    issued.result.div_(step.parts);
  }
  return step.put_together.empty() ? issued.result : issued.result.reshape(step.put_together);
}

at::Tensor run_step(comm::RankContext& ctx, const CompiledStep& step, const at::Tensor& local, const char* op) {
  if (step.collective != nullptr && is_noted(ctx.walk, step)) {
    ctx.ledger.record(step.collective, step.axis_name, op, step.bytes);
  }
  if (!ctx.walk.runs(step.home_axis, step.home)) {
    return at::empty({0}, local.options());  // a value of another of this rank's stages
  }
  if (std::optional<at::Tensor> part = try_hand_over(ctx, step, local)) {
    return *std::move(part);
  }
  if (step.collective != nullptr) {
    check_meets(ctx, step, op);
  }
  return left_for_stage(ctx, step, finish_step(step, issue_step(ctx, step, local)));
}

}  // namespace tessera::dtensor
