// Operators with a kernel of their own: reading a value, drawing random numbers, results whose size depends on data,
// tensor lists without rules.
#pragma once

#include <string>

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

using SpecialKernel = void (*)(RankState& state, const OpInfo& info, torch::jit::Stack& stack);

// Null if the operator has none.
SpecialKernel find_special(const std::string& op);

}  // namespace tessera::dtensor
