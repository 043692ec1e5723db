// A tensor's part under other placements.
#pragma once

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// The part of a DTensor under other placements, for special kernels; throws as check_explicit does. A Partial is merged
// for good: the value stays the same.
at::Tensor part_at(RankState& state, const OpInfo& info, const at::Tensor& tensor,
                   const layout::Placements& placements);

}  // namespace tessera::dtensor
