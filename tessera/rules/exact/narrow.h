// Exact forms of calls that read 16-bit numbers: the form in float32 on widened operands, rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/exact/exact.h"

namespace tessera::rules {

// float16 or bfloat16.
bool is_narrow(c10::ScalarType dtype);

// Whether the call reads such a tensor.
bool reads_narrow(const Call& call);

// What sums of `dtype` are added and merged in: float32 for 16 bits, else itself.
c10::ScalarType sum_dtype(c10::ScalarType dtype);

// The same tensor in another dtype.
layout::Spec with_dtype(const layout::Spec& spec, c10::ScalarType dtype);

// The exact form of a call that reads 16-bit numbers, made of that of float32: itself where it takes them as they are,
// else with operands widened and results rounded. Valid as long as the process lives. Thread-safe.
const ExactRule& narrow_form(const ExactRule& rule, const Call& call);

// The arguments of a call with 16-bit tensors widened, parts or DTensors. `stack` and `op` must outlive it.
class WidenedArgs {
 public:
  WidenedArgs(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  // The call's results, which stand on the stack in place of the arguments, as they would be without widening: of the
  // dtypes of `outputs`, or, without them, of what the operands promote to. What the call writes is written.
  void round_results(c10::ArrayRef<layout::Spec> outputs = {});

 private:
  c10::ScalarType promoted_dtype() const;

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t begin_;
  std::vector<c10::IValue> given_;
};

}  // namespace tessera::rules
