#include "tessera/dtensor/state/state.h"

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

RankState& RankState::require() {
  comm::RankContext::require();
  return *current();
}

}  // namespace tessera::dtensor
