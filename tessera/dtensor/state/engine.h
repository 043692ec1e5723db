// What a rank keeps of the calls that it has planned.
#pragma once

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
  GatherCache gathered;
  PlacedParameters parameters;
};

}  // namespace tessera::dtensor
