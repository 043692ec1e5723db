// Operators on lists of tensors, whose i-th elements belong together: `_foreach_*` and the gradient scaler.
#pragma once

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Kernels; see special_kernel.

// `_foreach_*`. Where the tensors of every element lie alike, one call on all parts; else the one-tensor operator for
// each element, by its rule, so that tensors of any layouts and plain ones can stand in one list. Euclidean norms are
// merged together, in one reduction for each way in which tensors are cut.
void foreach_call(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

// `_amp_foreach_non_finite_check_and_unscale_`: every rank learns what any rank found. Collective over the gradients'
// mesh.
void unscale(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
