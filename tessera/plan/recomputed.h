// Which modules of a model a plan has run again in backward, and of which it offloads what they save.
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

}  // namespace tessera::plan
