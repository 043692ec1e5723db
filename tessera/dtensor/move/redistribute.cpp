#include "tessera/dtensor/move/redistribute.h"

#include <algorithm>
#include <optional>

#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/move/run_step.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

MovePtr plan_move(comm::RankContext& context, const layout::Spec& from, const layout::Spec& to) {
  auto move = std::make_shared<Move>();
  move->from = from;
  move->to = to;
  move->casts = from->dtype != to->dtype;
  move->keeps_storage = !move->casts;
  move->path = reshard::plan_path(from.with_dtype(to->dtype), to);
  for (const reshard::Step& step : move->path.steps) {
    move->communicates |= !reshard::is_local(step.kind);
    move->keeps_storage &= step.kind == reshard::StepKind::kRelabel;
  }
  // Say of a rank that is not there what it must do.
  context.coord(from->mesh);
  context.coord(to->mesh);
  move->steps = compile_path(move->path, context.rank);
  return move;
}

}  // namespace

void Moves::drop_unused() {
  std::erase_if(moves_, [](const auto& entry) { return entry.second.use_count() <= 1; });  // 0: it could not be planned
  most_ = std::max(kMost, 2 * moves_.size());
}

MovePtr Moves::find_or_plan(const layout::Spec& from, const layout::Spec& to) {
  if (moves_.size() >= most_) {
    drop_unused();
  }
  MovePtr& entry = moves_[{from.get(), to.get()}];
  if (!entry) {
    entry = plan_move(context_, from, to);
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
  at::Tensor current = move.casts ? local.to(move.to->dtype) : local;
  for (const CompiledStep& step : move.steps) {
    current = run_step(ctx, step, current, op);
  }
  return current;
}

}  // namespace tessera::dtensor
