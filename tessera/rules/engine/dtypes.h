// Dtypes of results, for operators that libtorch cannot run on meta tensors (ShapeSource::kFactors), and of sums
// inside.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/rules/engine/call.h"

namespace tessera::rules {

// What operands [first, ...) and the number arguments promote to; of an operand that is written, its own.
c10::ScalarType promoted_dtype(const Call& call, size_t first = 0);

// The dtype itself, or the default one if it holds no fractions.
c10::ScalarType fractional_dtype(c10::ScalarType dtype);

// The argument `dtype` if the call has one, else `otherwise`.
c10::ScalarType asked_dtype(const Call& call, c10::ScalarType otherwise);

// What a kernel accumulates in: half-precision types are rounded once, at the end.
at::Tensor widened(const at::Tensor& x);

}  // namespace tessera::rules
