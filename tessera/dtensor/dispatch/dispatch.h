// The kernel behind every operator on DTensors.
#pragma once

#include <ATen/core/stack.h>

#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// Runs `info`'s operator on the arguments on top of the stack, of which at least one is (or was taken for) a DTensor.
// Hit: the key is looked up, operands are moved as the plan says, the local operator runs and its results are wrapped.
void dispatch(const OpInfo& info, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
