// Sequence parallelism: on the tensor axis, what norms and the residual sum read lies in parts of the sequence.
//
// It hangs on what makes those values: embeddings, and the products that lead back to the residual width.
#include "tessera/plan/draft.h"
#include "tessera/plan/heads.h"

namespace tessera::plan {

void plan_sequence(Draft& draft) {
  const auto axis = draft.wide_axis(layout::AxisRole::kTensor);
  if (!draft.options.sequence_parallel || !axis) {
    return;
  }
  const layout::Mesh& mesh = draft.plan.mesh;
  layout::Placements parts(static_cast<size_t>(mesh.ndim()));  // of [batch, sequence, ...]
  parts[static_cast<size_t>(*axis)] = layout::Shard(1);
  for (const auto& name : draft.plan.batch_axes) {
    parts[static_cast<size_t>(mesh.axis_index(name))] = layout::Shard(0);
  }
  for (const auto& embedding : draft.roles.embeddings) {
    draft.entry(embedding.weight()).output = parts;
  }
  for (const auto& group : draft.roles.groups) {
    if (group.row && !group.row->is_stacked &&
        fusion_of(group, heads_of(group, draft.options), draft.options).is_order_known) {
      draft.entry(group.row->weight()).output = parts;
    }
  }
}

}  // namespace tessera::plan
