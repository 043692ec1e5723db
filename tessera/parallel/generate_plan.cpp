#include "tessera/parallel/generate_plan.h"

#include "tessera/base/error.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

namespace {

// A rank that sums exactly has said its lattice already.
plan::PlanOptions with_lattice_of_rank(plan::PlanOptions options) {
  const auto* rank = dtensor::RankState::current();
  if (rank && rank->exact.lattice()) {
    TESSERA_CHECK_AS(PlanError, !options.lattice || options.lattice == rank->exact.lattice(),
                     "[generate_plan] lattice ", options.lattice->str(), ", but this rank's numerics are exact on ",
                     rank->exact.lattice()->str(), "; accepted: that one, or none: it is taken from the numerics");
    options.lattice = rank->exact.lattice();
  }
  return options;
}

plan::PlanOptions with_mesh_of_run(plan::PlanOptions options) {
  if (const auto* run = comm::compared_run()) {
    options.mesh = options.mesh ? comm::mesh_for(*options.mesh) : run->mesh;
    options.devices = run->mesh.size();
  }
  return options;
}

}  // namespace

plan::Plan generate_plan(const torch::nn::Module& model, const plan::PlanOptions& options) {
  return generate_plan(plan::describe(model), options);
}

plan::Plan generate_plan(const plan::ModuleTree& model, const plan::PlanOptions& options) {
  dtensor::verify_operators_to_keep(options.recompute_keep);
  return plan::plan_model(model, with_mesh_of_run(with_lattice_of_rank(options)));
}

}  // namespace tessera::parallel
