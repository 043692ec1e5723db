// Views that a tensor becomes itself: transpose_, squeeze_ and their kin; and conj, which libtorch makes a view.
#pragma once

#include <string>

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Note [Views in place]. `x.transpose_(0, 1)` changes what the tensor is, not what its memory holds: the tensor gets
// the record that `x.transpose(0, 1)` would have, whose base is the record it had, and that record's sizes and strides.
// Detached aliases and copies that the graph saved keep the old record; writes reach them as they reach the base of any
// view.
//
// In backward libtorch rebuilds a view by strides and offsets, which a part does not have: ranks have it replay views
// instead (plain.h), and how a tensor is a view of its base does not follow by itself. So the call adds its step to
// what is replayed, of plain tensors too; a DTensor that is itself the base of living views is refused, as those are
// replayed from its sizes.

// Runs one (Special::kViewInPlace). Collective where the view is.
void view_in_place(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

// Registers what adds that step. Called once, with the other kernels.
void register_views_in_place(class KernelRegistry& registry);

// aten::_conj, as a copy that is written back (views.h): a part with libtorch's lazy mark would meet kernels that do
// not know it.
void conjugate(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
