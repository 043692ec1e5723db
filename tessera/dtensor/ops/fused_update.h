// Steps of optimizers for lists of tensors: `_fused_adamw_` and its kin, and our own (optimizer_ops.h).
#pragma once

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// A kernel; see special_kernel. One call on all parts. What belongs to a parameter and has its sizes is brought to its
// layout first; what was written elsewhere is put back. State of other sizes (a scale for each block) lies with its
// parameter already. In `exact` the call runs by the exact form of its row, an element by its own values alone; without
// one it is refused. Collective over the parameters' meshes.
void fused_update(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
