// Which modules of a model a plan has run again in backward.
#pragma once

#include <string>
#include <vector>

#include "tessera/plan/module_tree.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

// Dotted names of the modules that Plan::recompute matches, in the order of the model. Throws PlanError if one of its
// patterns matches none.
std::vector<std::string> recomputed_modules(const Plan& plan, const ModuleTree& model);

}  // namespace tessera::plan
