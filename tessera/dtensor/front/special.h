// Operators with a kernel of their own: reading a value, drawing random numbers, results whose size depends on data,
// tensor lists without rules.
#pragma once

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

using SpecialKernel = void (*)(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

// Null for Special::kNone.
SpecialKernel special_kernel(rules::Special special);

}  // namespace tessera::dtensor
