// Operators that run on gradients that wait, without their values.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// Whether the operator can run on a handle without its value: it is linear in it, or made of operators that are.
inline bool is_carried(const OpInfo& info) { return info.row.carry != rules::Carry::kNo; }

// Whether the operator looks at sizes and layouts only, or makes an alias.
inline bool needs_no_value(const OpInfo& info) { return info.row.needs_no_value; }

// The operator's result without a value: a handle. `args` are the call's, `output` the layout its plan gives. What else
// the operator reads is copied: the program may write to it before the handle is settled. Undefined if the operands
// must be settled after all.
at::Tensor carry(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args, layout::Spec output);

// A handle that a walk over a micro-batch made (comm::Walk), put together with what the walks before made of the same
// value, undefined if it is the first: of each sum one of them has the samples, or all have the same. It lies as this
// walk's if `is_ours`. No call that ranks compare. Throws if the walks ran different programs.
at::Tensor join_walks(RankState& state, const at::Tensor& before, const at::Tensor& of_walk, bool is_ours);

}  // namespace tessera::dtensor
