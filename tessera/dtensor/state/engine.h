// What a rank keeps of the calls that it has planned.
#pragma once

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/plan/forward_plans.h"
#include "tessera/dtensor/plan/plan_cache.h"
#include "tessera/dtensor/state/gather_cache.h"
#include "tessera/dtensor/state/parameters.h"

namespace tessera::dtensor {

// A value that this rank has sent or received between stages: which, where it lay, where it is read, and by whom.
struct Sent {
  const Meta* value;  // for telling it from others, while it lives
  layout::Spec from, to;
  const char* reader;
};

// Each of these looks after itself; dispatch fills them.
struct Engine {
  // For the rank of `context`, which outlives it.
  explicit Engine(comm::RankContext& context) : moves(context) {}

  // The plans of calls; who runs a call is part of its plan, so each stage that runs alone (comm::Walk) has its own.
  PlanCache& plans() { return *plans_; }
  const PlanCache& plans() const { return *plans_; }
  void plan_for(int64_t stage) { plans_ = &plans_of_stages_[stage]; }

  Moves moves;
  ForwardPlans forward_plans;
  // What operators gathered: of activations, within the plan's budget; of parameters, the newest alone, and what stays
  // for a step.
  GatherCache gathered{&Rare::gathered};
  GatherCache gathered_parameters{&Rare::gathered};
  GatherCache kept_parameters{&Rare::kept, std::numeric_limits<int64_t>::max()};
  GatheredGroups gathered_groups;
  // Set: gradients that groups merge go there, not to their parameters; see front/gradients_aside.h.
  std::vector<std::pair<const Meta*, at::Tensor>>* gradients_aside = nullptr;
  // In the walk of a schedule that runs, in the order of the messages.
  std::vector<Sent> sent;
  PlacedParameters parameters;

  // When a pass ends, and when a step does.
  void drop_gathered() {
    gathered.clear();
    gathered_parameters.clear();
    gathered_groups.end_pass();
  }
  void drop_kept() {
    kept_parameters.clear();
    gathered_groups.end_step();
  }

 private:
  std::map<int64_t, PlanCache> plans_of_stages_;
  PlanCache* plans_ = &plans_of_stages_[comm::Walk::kAllStages];
};

}  // namespace tessera::dtensor
