#include "tessera/dtensor/move/run_step.h"

#include <limits>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

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
  const at::Tensor part = step.taken_apart.empty() ? local : local.view(step.taken_apart);
  if (is_local(step.action)) {
    return {.result = run_local(step, part)};
  }
  return issue(step.axis >= 0 ? ctx.axis(step.mesh, step.axis) : ctx.whole(step.mesh), step, part);
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
  if (step.collective != nullptr) {
    ctx.ledger.record(step.collective, step.axis_name, op, step.bytes);
  }
  return finish_step(step, issue_step(ctx, step, local));
}

}  // namespace tessera::dtensor
