// A plan for the calling rank.
#pragma once

#include <torch/nn/module.h>

#include "tessera/plan/plan_model.h"

namespace tessera::parallel {

// plan::plan_model, whose options say what is wanted. Inside a rank whose numerics are exact the lattice is that of
// `set_numerics`: it need not be given, and another one is refused with PlanError. A compared run has its own mesh in
// place of the one that is asked for (comm::mesh_for).
plan::Plan generate_plan(const torch::nn::Module& model, const plan::PlanOptions& options);
plan::Plan generate_plan(const plan::ModuleTree& model, const plan::PlanOptions& options);

}  // namespace tessera::parallel
