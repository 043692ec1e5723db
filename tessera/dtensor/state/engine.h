// What a rank keeps of the calls that it has planned.
#pragma once

#include <limits>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/plan/forward_plans.h"
#include "tessera/dtensor/plan/plan_cache.h"
#include "tessera/dtensor/state/gather_cache.h"
#include "tessera/dtensor/state/parameters.h"

namespace tessera::dtensor {

// Each of these looks after itself; dispatch fills them.
struct Engine {
  // For the rank of `context`, which outlives it.
  explicit Engine(comm::RankContext& context) : moves(context) {}

  PlanCache plans;
  Moves moves;
  ForwardPlans forward_plans;
  // What operators gathered: of activations, within the plan's budget; of parameters, the newest alone, and what stays
  // for a step.
  GatherCache gathered{&Rare::gathered};
  GatherCache gathered_parameters{&Rare::gathered};
  GatherCache kept_parameters{&Rare::kept, std::numeric_limits<int64_t>::max()};
  PlacedParameters parameters;

  // When a pass ends.
  void drop_gathered() {
    gathered.clear();
    gathered_parameters.clear();
  }
};

}  // namespace tessera::dtensor
