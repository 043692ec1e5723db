#include "tessera/dtensor/state/state.h"

#include <utility>

#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

RankState* RankState::current() {
  struct Known {
    comm::RankContext* ctx;
    RankState* state;
    uint64_t id;
  };
  static thread_local Known known;
  comm::RankContext* ctx = comm::RankContext::current();
  if (C10_LIKELY(ctx == known.ctx && ctx && ctx->id == known.id)) {
    return known.state;
  }
  if (!ctx) {
    return nullptr;
  }
  static const char kSlot = 0;
  std::shared_ptr<void>& slot = ctx->slot(&kSlot);
  if (!slot) {
    slot = std::make_shared<RankState>(*ctx);
  }
  known = {ctx, static_cast<RankState*>(slot.get()), ctx->id};
  return known.state;
}

bool RankState::has_part(const layout::Spec& spec) const {
  if (spec->is_everywhere) {
    return true;
  }
  const layout::Coord& coord = ctx.coord(spec->mesh);
  for (int64_t axis = 0; axis < spec->mesh.ndim(); ++axis) {
    const layout::Placement& place = spec->placements[axis];
    if (!place.holds(coord[axis]) || !ctx.walk.runs(spec->mesh.axis(axis).name, place)) {
      return false;
    }
  }
  return true;
}

bool RankState::is_noted(const layout::Spec& spec) const {
  const layout::Coord& coord = ctx.coord(spec->mesh);
  for (int64_t axis = 0; axis < spec->mesh.ndim(); ++axis) {
    const layout::Placement& place = spec->placements[axis];
    if (spec->mesh.axis(axis).name != ctx.walk.axis || place.is_replicate()) {
      continue;
    }
    if (!place.is_on() || layout::is_of_vocabulary(place.stage)) {
      return !place.is_on() && layout::is_of_vocabulary(ctx.walk.stage);
    }
    if (place.holds(coord[axis])) {
      return ctx.walk.runs(ctx.walk.axis, place);
    }
  }
  return ctx.walk.keeps_books;
}

void RankState::begin_walk(comm::Walk walk) {
  ctx.walk = std::move(walk);
  flags_.set(kOfVocabulary, layout::is_of_vocabulary(ctx.walk.stage));
  engine.plan_for(ctx.walk.stage);
  engine.sent.clear();
}

RankState& RankState::require() {
  comm::RankContext::require();
  return *current();
}

}  // namespace tessera::dtensor
