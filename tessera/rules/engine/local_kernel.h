// Kernels that stand in an operator's row: of the parts that a rank holds, and of the whole call.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/layout/spec.h"

namespace tessera::rules {

// What a local kernel may know of its place: for each operand (after redistribution) and output, the run of every dim
// that this rank holds; of an interleaved dim, the run in its first block.
struct LocalCall {
  const c10::OperatorHandle* op = nullptr;
  std::vector<layout::Spec> operands;
  std::vector<layout::Spec> outputs;
  std::vector<std::vector<layout::Range>> operand_ranges;
  std::vector<std::vector<layout::Range>> output_ranges;
};

// Replaces the plain local call: the stack holds the arguments with local tensors, sizes rewritten (FactorMap::sizes),
// and leaves with local results. It is right for whole tensors too.
using LocalKernel = void (*)(const LocalCall&, torch::jit::Stack&);

// Replaces the whole call by other operators on DTensors, below autograd: the stack holds the arguments as the user
// gave them and leaves with the results.
using Decomposition = void (*)(const c10::OperatorHandle&, torch::jit::Stack&);

}  // namespace tessera::rules
