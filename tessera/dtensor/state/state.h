// What the dtensor floor keeps for each rank.
#pragma once

#include <cstdint>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/state/bodies.h"
#include "tessera/dtensor/state/call_flags.h"
#include "tessera/dtensor/state/engine.h"
#include "tessera/dtensor/state/exact.h"
#include "tessera/dtensor/state/pass.h"
#include "tessera/dtensor/state/random.h"
#include "tessera/dtensor/state/watch.h"
#include "tessera/random/counter.h"

namespace tessera::dtensor {

// Where the program stands, for what it draws: what a run again takes and goes back to.
struct ProgramPoint {
  Sites::Position position;
  Random random;
};

// One of each rank, in parts that keep their own invariants: this floor reads and changes them, higher ones call their
// setters. The rank's own thread uses it, and the threads of its backward passes.
struct RankState {
 private:
  RankFlags flags_;  // before the parts that set its bits

 public:
  explicit RankState(comm::RankContext& context) : ctx(context) {}

  // The state of the calling rank; `current` is null outside of a rank.
  static RankState* current();
  static RankState& require();

  comm::RankContext& ctx;
  Engine engine{ctx};
  Pass pass;
  Exact exact{flags_};
  Random random;
  Watch watch{flags_};
  Bodies bodies{flags_};

  // Whether this rank has a part of a tensor of this layout; of a pipeline's stages, where it stands now.
  bool has_part(const layout::Spec& spec) const;
  // ... and whether it is for the walk that runs to say what becomes of such a tensor (comm::Walk): of the walks over a
  // micro-batch it is for one.
  bool is_noted(const layout::Spec& spec) const;

  // From now on the rank walks so.
  void begin_walk(comm::Walk walk);

  // CallFlags of the walk, `exact`, `watch` and `bodies`.
  uint32_t flags() const { return flags_.bits(); }

  // The stream of the next draw.
  tessera::random::Stream next_stream() { return {random.seed(), pass.sites.next_draw(), pass.sites.step()}; }

  ProgramPoint point() const { return {pass.sites.position(), random}; }
  void go_to(const ProgramPoint& point) {
    pass.sites.restore(point.position);
    random = point.random;
  }
};

}  // namespace tessera::dtensor
