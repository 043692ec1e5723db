// How an operator runs in `exact` numerics, as a part of its row. See exact/exact.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/call.h"
#include "tessera/rules/engine/local_kernel.h"

namespace tessera::rules {

// What an exact sum may know besides its arguments.
struct ExactCall {
  const LocalCall* local = nullptr;  // of the whole part; the operands that a kernel sees are cut further
  int64_t leaf = 0;                  // of a node: elements of a leaf along the summed dim
};

// The sum over one node of the tree: the operands hold the node's run of the summed dim. The result is contiguous, in
// float32 where the operator's is of 16 bits.
using NodeKernel = at::Tensor (*)(const ExactCall& call, c10::ArrayRef<c10::IValue> args);

// Adds the sum over the tokens of one sample (of one sequence leaf), to which the operands are cut, onto `onto`: the
// tokens in their order first, then one addition for each element. `onto` is contiguous and of the result's local
// sizes, in float32 where the operator's result is of 16 bits.
using SampleKernel = void (*)(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);

struct ExactRule {
  LocalKernel local = nullptr;        // instead of the ordinary kernel
  Decomposition decompose = nullptr;  // instead of the call, where `decompose_when` says so (always, if it is null)
  bool (*decompose_when)(const Call&) = nullptr;
  NodeKernel node = nullptr;                  // the operator sums
  SampleKernel sample = nullptr;              // ... over samples too
  bool (*per_sample)(const Call&) = nullptr;  // true: the ordinary kernel is called for each sample alone
  bool keeps_whole = false;                   // what is summed, but for samples, is never cut: it is gathered first
  bool moves = false;                         // it moves, makes or compares values, of any dtype
  bool adds_zeros = false;                    // a split sum has one term that is not zero: any order is exact
  bool (*accepts)(const Call&) = nullptr;     // false: this call has no exact form
  // True: right for 16-bit numbers as it is. Else they are widened, and the results rounded (exact/narrow.h).
  bool (*takes_narrow)(const Call&) = nullptr;

  bool operator==(const ExactRule&) const = default;
};

}  // namespace tessera::rules
