// Which modules of a model a plan has run again in backward, of which it offloads what they save, and past which the
// ranks of other stages may go.
#pragma once

#include <string>
#include <vector>

#include "tessera/plan/module_tree.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

// Dotted names of the modules that Plan::recompute matches, in the order of the model. Throws PlanError if one of its
// patterns matches none, if it keeps results of operators where nothing is recomputed.
std::vector<std::string> recomputed_modules(const Plan& plan, const ModuleTree& model);

// Likewise of Plan::offload.
std::vector<std::string> offloaded_modules(const Plan& plan, const ModuleTree& model);

// Those with parameters, all of them on one stage and none read by a module outside, without what Plan::always_walked
// matches and what is in it; modules in modules, too. None where the plan has no schedule. Throws PlanError likewise.
std::vector<std::string> passable_modules(const Plan& plan, const ModuleTree& model);

}  // namespace tessera::plan
