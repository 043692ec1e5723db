#include "tessera/dtensor/record/gather_policy.h"

namespace tessera::dtensor {

using layout::Placement;

layout::Spec gathered(const layout::Spec& stored, const std::vector<int64_t>& axes) {
  layout::Placements placements = stored->placements;
  for (const int64_t axis : axes) {
    Placement& placement = placements[static_cast<size_t>(axis)];
    placement = placement.is_shard() ? layout::Replicate() : placement;
  }
  return stored.with(placements);
}

layout::Spec read_spec(const layout::Spec& stored, const GatherPolicy& policy) {
  return gathered(stored, policy.read).with_dtype(policy.dtype.value_or(stored->dtype));
}

layout::Spec kept_spec(const layout::Spec& stored, const GatherPolicy& policy) {
  return gathered(stored, policy.kept).with_dtype(policy.dtype.value_or(stored->dtype));
}

layout::Spec merged_gradient(const layout::Spec& found, const layout::Spec& stored, const GatherPolicy& policy) {
  layout::Placements placements = found->placements;
  for (const int64_t axis : policy.merged) {
    const Placement& wanted = placements[static_cast<size_t>(axis)] = stored->placements[static_cast<size_t>(axis)];
    for (size_t other = 0; other < placements.size(); ++other) {  // ... in the order of all that cut the dim there
      if (placements[other].shares_dim(wanted) && stored->placements[other].shares_dim(wanted)) {
        placements[other] = stored->placements[other];
      }
    }
  }
  return found.with(placements).with_dtype(policy.merge_dtype.value_or(stored->dtype));
}

}  // namespace tessera::dtensor
