#include "tessera/plan/plan_model.h"

#include "tessera/base/error.h"
#include "tessera/plan/draft.h"
#include "tessera/plan/planned_modules.h"

namespace tessera::plan {
namespace {

PlanOptions verified(PlanOptions options) {
  const int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
  TESSERA_CHECK_AS(PlanError, options.devices >= 1 && options.heads >= 0 && options.kv_heads >= 0,
                   "[generate_plan] devices ", options.devices, ", heads ", options.heads, ", kv_heads ",
                   options.kv_heads,
                   "; accepted: at least one device, and numbers of heads that are not negative (0: unknown)");
  TESSERA_CHECK_AS(PlanError, options.heads > 0 ? options.heads % kv_heads == 0 : kv_heads == 0,
                   "[generate_plan] heads ", options.heads, " with kv_heads ", options.kv_heads,
                   "; accepted: heads a multiple of kv_heads, or neither given");
  options.kv_heads = kv_heads;
  return options;
}

// Data parallelism first: no more of it than the lattice has leaves of a batch, and tensor parallelism for the rest.
layout::Mesh choose_mesh(int64_t devices, const std::optional<sums::Lattice>& lattice) {
  if (devices == 1) {
    return {};
  }
  int64_t ranks = 1;
  while (lattice && (devices % ranks != 0 || devices / ranks > lattice->batch)) {
    ++ranks;
  }
  TESSERA_CHECK_AS(PlanError, ranks == 1 || ranks <= lattice->feature, "[generate_plan] no mesh of ", devices,
                   " ranks fits the lattice ", lattice->str(), "; accepted: a lattice with batch=", devices,
                   ", or fewer ranks: dp of at most ", lattice->batch, " times tp of at most ", lattice->feature);
  std::vector<layout::Axis> axes;
  if (devices > ranks) {
    axes.push_back({layout::name_of(layout::AxisRole::kData), devices / ranks});
  }
  if (ranks > 1) {
    axes.push_back({layout::name_of(layout::AxisRole::kTensor), ranks});
  }
  return layout::Mesh(axes);
}

}  // namespace

Plan plan_model(const ModuleTree& model, const PlanOptions& options) {
  const PlanOptions wanted = verified(options);
  Draft draft(model, wanted, wanted.mesh ? *wanted.mesh : choose_mesh(wanted.devices, wanted.lattice));
  if (!wanted.mesh && wanted.devices > 1) {
    draft.note(c10::str("mesh {", draft.plan.mesh.str(), "} chosen for ", wanted.devices,
                        " ranks, data parallelism first; another is given as the mesh"));
  }
  if (!wanted.keep_gathered) {
    draft.plan.keep_gathered_bytes =
        1;  // the largest activation is unknown here: only the newest gathered tensor stays
  }
  for (const Style plan_style : styles()) {
    plan_style(draft);
  }
  draft.plan.recompute = wanted.recompute;
  draft.plan.recompute_keep = wanted.recompute_keep;
  draft.plan.offload = wanted.offload;
  recomputed_modules(draft.plan, model);
  offloaded_modules(draft.plan, model);
  return draft.finish();
}

}  // namespace tessera::plan
