// Fully sharded data parallelism: of every parameter each rank of an fsdp axis keeps some rows, with their gradient and
// the optimizer's state; operators gather the parameters that they read.
#include "tessera/plan/draft.h"

namespace tessera::plan {
namespace {

// Cuts dim 0 over `axes`, each what those before it and the axes that cut the dim already left.
layout::Placements cut_rows(const layout::Mesh& mesh, layout::Placements placements, const std::vector<int64_t>& axes) {
  std::vector<int64_t> in_order = layout::axes_of_dim(mesh, placements, 0);
  const int64_t blocks = in_order.empty() ? 1 : placements[static_cast<size_t>(in_order.front())].blocks;
  for (const int64_t axis : axes) {
    placements[static_cast<size_t>(axis)] = layout::Shard(0, {.blocks = blocks});
    in_order.push_back(axis);
  }
  for (size_t i = 0; i < in_order.size(); ++i) {
    placements[static_cast<size_t>(in_order[i])].order = static_cast<int8_t>(i);
  }
  return layout::normal_form(mesh, placements);
}

}  // namespace

void plan_sharded(Draft& draft) {
  const std::vector<int64_t> axes = draft.wide_axes(layout::AxisRole::kSharded);
  if (axes.empty()) {
    return;
  }
  const Sharding sharding = draft.options.sharding;
  for (const NamedTensor& named : draft.parameters()) {
    if (named.tensor.dim() == 0) {
      draft.note(general(named.name) + " stays whole: it has no rows");
      continue;
    }
    ParameterPlan& entry = draft.entry(named.name);
    const layout::Placements compute = std::exchange(entry.storage, cut_rows(draft.plan.mesh, entry.storage, axes));
    entry.compute = compute;
    if (sharding != Sharding::kParameters) {
      entry.kept = compute;
    }
    entry.gradient = sharding == Sharding::kState ? compute : entry.storage;
    for (const auto& name : draft.plan.batch_axes) {
      layout::Placement& placement = (*entry.gradient)[static_cast<size_t>(draft.plan.mesh.axis_index(name))];
      placement = placement.is_shard() ? placement : layout::Partial();
    }
  }
}

}  // namespace tessera::plan
