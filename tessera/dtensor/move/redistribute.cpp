#include "tessera/dtensor/move/redistribute.h"

#include <cmath>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "tessera/base/error.h"
#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/move/boxes.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

using comm::Communicator;
using layout::Coord;
using layout::Range;
using layout::ReduceOp;
using layout::Spec;
using reshard::Box;
using reshard::Step;
using reshard::StepKind;

// One step on one rank.
struct StepRun {
  comm::RankContext& ctx;
  const Step& step;
  const at::Tensor& local;

  Communicator& group() const { return ctx.axis(step.before->mesh, step.axis); }
  int64_t parts() const { return step.before->mesh.axis(step.axis).size; }

  // The box of the rank that stands at `index` of this line of the axis.
  Box box_before(int64_t index) const { return at(step.before, index); }
  Box box_after(int64_t index) const { return at(step.after, index); }
  // Where on it this rank stands, and whether a rank at `index` has a part.
  int64_t index() const { return ctx.coord(step.before->mesh)[step.axis]; }
  bool holds_before(int64_t index) const { return step.from.holds(index); }
  bool holds_after(int64_t index) const { return step.to.holds(index); }

  Box my_box_before() const { return step.before.local_ranges(ctx.coord(step.before->mesh)); }
  Box my_box_after() const { return step.after.local_ranges(ctx.coord(step.after->mesh)); }

 private:
  Box at(const Spec& spec, int64_t index) const {
    Coord coord = ctx.coord(spec->mesh);
    coord[step.axis] = index;
    return spec.local_ranges(coord);
  }
};

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

void finish_average(at::Tensor& result, ReduceOp op, int64_t parts) {
  if (op == ReduceOp::kAvg) {
    result.div_(parts);
  }
}

at::Tensor all_reduce(const StepRun& run) {
  at::Tensor result = run.local.clone(at::MemoryFormat::Contiguous);
  run.group().all_reduce(result, wire_op(run.step.from.op))->wait();
  finish_average(result, run.step.from.op, run.parts());
  return result;
}

at::Tensor reduce_scatter(const StepRun& run) {
  const Box mine = run.my_box_before();
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < run.parts(); ++i) {
    inputs.push_back(narrow_to(run.local, mine, run.box_after(i)).contiguous());
  }
  at::Tensor result = empty_box(run.local, run.my_box_after());
  run.group().reduce_scatter(result, std::move(inputs), wire_op(run.step.from.op))->wait();
  finish_average(result, run.step.from.op, run.parts());
  return result;
}

at::Tensor all_gather(const StepRun& run) {
  std::vector<at::Tensor> outputs;
  for (int64_t i = 0; i < run.parts(); ++i) {
    outputs.push_back(empty_box(run.local, run.box_before(i)));
  }
  run.group().all_gather(outputs, run.local.contiguous())->wait();
  return at::cat(outputs, run.step.from.dim);
}

// What a rank has that holds no part.
at::Tensor nothing(const StepRun& run) { return at::empty({0}, run.local.options()); }

// Each member sends every other the part of its box that the other will hold.
at::Tensor all_to_all(const StepRun& run) {
  const Box before = run.my_box_before(), after = run.my_box_after();
  const bool gives = run.holds_before(run.index()), takes = run.holds_after(run.index());
  std::vector<at::Tensor> inputs, outputs;
  std::vector<Box> received;
  for (int64_t i = 0; i < run.parts(); ++i) {
    const bool sends = gives && run.holds_after(i), receives = takes && run.holds_before(i);
    inputs.push_back(sends ? narrow_to(run.local, before, reshard::intersect(before, run.box_after(i))).contiguous()
                           : nothing(run));
    received.push_back(reshard::intersect(run.box_before(i), after));
    outputs.push_back(receives ? empty_box(run.local, received.back()) : nothing(run));
  }
  run.group().all_to_all(outputs, inputs)->wait();
  if (!takes) {
    return nothing(run);
  }
  at::Tensor result = empty_box(run.local, after);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].numel() > 0) {
      narrow_to(result, after, received[i]).copy_(outputs[i]);
    }
  }
  return result;
}

at::Tensor broadcast(const StepRun& run) {
  const int64_t root = run.step.from.coordinate();
  const bool is_root = run.index() == root;
  at::Tensor sent = is_root ? run.local.contiguous() : empty_box(run.local, run.my_box_after());
  run.group().broadcast(sent, root)->wait();
  return is_root ? run.local : sent;
}

at::Tensor reduce(const StepRun& run) {
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < run.parts(); ++i) {
    inputs.push_back(run.holds_after(i) ? run.local.contiguous() : nothing(run));
  }
  at::Tensor result = run.holds_after(run.index()) ? empty_box(run.local, run.my_box_after()) : nothing(run);
  run.group().reduce_scatter(result, std::move(inputs), wire_op(run.step.from.op))->wait();
  finish_average(result, run.step.from.op, run.parts());
  return result;
}

at::Tensor drop(const StepRun& run) { return run.holds_after(run.index()) ? run.local : nothing(run); }

at::Tensor slice(const StepRun& run) { return narrow_to(run.local, run.my_box_before(), run.my_box_after()); }

at::Tensor partialize(const StepRun& run) {
  const ReduceOp op = run.step.to.op;
  const bool is_one = run.step.from.is_on();
  const bool all_keep = !is_one && op != ReduceOp::kSum && op != ReduceOp::kProd;
  if (all_keep || run.index() == (is_one ? run.step.from.coordinate() : 0)) {
    return run.local;
  }
  return at::full(sizes_of(run.my_box_after()), identity(op, run.local.scalar_type()), run.local.options());
}

at::Tensor pad(const StepRun& run) {
  const Box after = run.my_box_after();
  at::Tensor result = at::full(sizes_of(after), identity(run.step.to.op, run.local.scalar_type()), run.local.options());
  narrow_to(result, after, run.my_box_before()).copy_(run.local);
  return result;
}

at::Tensor exchange(const StepRun& run) {
  if (!run.step.before->holds(run.ctx.coord(run.step.before->mesh))) {
    run_transfers(run.ctx.whole(run.step.before->mesh), {}, run.local, {}, std::nullopt);
    return run.local;
  }
  const reshard::Exchange exchange(reshard::Holdings(run.step.before), reshard::Holdings(run.step.after));
  return run_transfers(run.ctx.whole(run.step.before->mesh), exchange.transfers_of(run.ctx.rank), run.local,
                       run.my_box_before(), run.my_box_after());
}

at::Tensor run_step(const StepRun& run) {
  switch (run.step.kind) {
    case StepKind::kAllReduce: return all_reduce(run);
    case StepKind::kReduceScatter: return reduce_scatter(run);
    case StepKind::kAllGather: return all_gather(run);
    case StepKind::kAllToAll: return all_to_all(run);
    case StepKind::kSlice: return slice(run);
    case StepKind::kPartialize: return partialize(run);
    case StepKind::kPad: return pad(run);
    case StepKind::kExchange: return exchange(run);
    case StepKind::kGather:
    case StepKind::kScatter:
    case StepKind::kSend: return all_to_all(run);
    case StepKind::kBroadcast: return broadcast(run);
    case StepKind::kReduce: return reduce(run);
    case StepKind::kDrop: return drop(run);
    case StepKind::kRelabel: break;
  }
  return run.local;
}

// Whether the line of this rank holds the tensor, by the axes that do not change.
bool takes_part(const Step& step, const Coord& coord) {
  for (size_t axis = 0; axis < coord.size(); ++axis) {
    if (static_cast<int64_t>(axis) != step.axis && !step.before->placements[axis].holds(coord[axis])) {
      return false;
    }
  }
  return true;
}

at::Tensor run_step_of(comm::RankContext& ctx, const Step& step, const at::Tensor& local) {
  const bool is_everywhere = step.before->is_everywhere && step.after->is_everywhere;
  if (!is_everywhere && step.axis >= 0 && !takes_part(step, ctx.coord(step.before->mesh))) {
    return local;
  }
  const auto takes_apart = [&](const Spec& spec) {
    return !step.blocks.empty() && (is_everywhere || spec->holds(ctx.coord(spec->mesh)));
  };
  at::Tensor result = run_step({ctx, step, takes_apart(step.before) ? unfolded(local, step.blocks) : local});
  return takes_apart(step.after) ? folded(result, step.blocks) : result;
}

std::string axis_name(const Step& step) {
  return step.axis >= 0 ? step.before->mesh.axis(step.axis).name : step.before->mesh.str();
}

}  // namespace

at::Tensor unfolded(const at::Tensor& local, c10::IntArrayRef blocks) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < blocks.size(); ++d) {
    if (blocks[d] > 1) {
      sizes.push_back(blocks[d]);
    }
    sizes.push_back(local.size(static_cast<int64_t>(d)) / blocks[d]);
  }
  return local.view(sizes);
}

void Moves::drop_unused() {
  std::erase_if(moves_, [](const auto& entry) { return entry.second.use_count() == 1; });
  most_ = std::max(kMost, 2 * moves_.size());
}

MovePtr Moves::find_or_plan(const Spec& from, const Spec& to) {
  if (moves_.size() >= most_) {
    drop_unused();
  }
  MovePtr& entry = moves_[{from.get(), to.get()}];
  if (!entry) {
    auto move = std::make_shared<Move>();
    move->from = from;
    move->to = to;
    move->path = reshard::plan_path(from, to);
    for (const Step& step : move->path.steps) {
      move->communicates |= !reshard::is_local(step.kind);
      move->keeps_storage &= step.kind == StepKind::kRelabel;
    }
    entry = std::move(move);
  }
  return entry;
}

at::Tensor run_move(comm::RankContext& ctx, const Move& move, const at::Tensor& local, const char* op) {
  LocalScope scope;
  comm::Caller caller(ctx, op);
  std::optional<comm::FlightLayouts> layouts;
  if (move.communicates) {
    layouts.emplace(ctx, move.from, move.to);
  }
  at::Tensor current = local;
  for (const Step& step : move.path.steps) {
    if (!reshard::is_local(step.kind)) {
      ctx.ledger.record(reshard::name_of(step.kind), axis_name(step), op,
                        static_cast<int64_t>(std::llround(step.bytes)));
    }
    current = run_step_of(ctx, step, current);
  }
  return current;
}

}  // namespace tessera::dtensor
