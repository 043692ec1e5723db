// Runs a templated body for the dtype of a tensor, of those that exact kernels have. (16-bit numbers come to them
// widened: exact/narrow.h.)
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"

namespace tessera::rules {

// body.operator()<float>() or <double>(). Throws for other dtypes: `what` names the operator.
template <typename Body>
void dispatch_floats(const at::Tensor& tensor, const char* what, Body&& body) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return body.template operator()<float>();
    case at::kDouble: return body.template operator()<double>();
    default:
      TESSERA_CHECK(false, "[", what, "] has no exact form in ", tensor.scalar_type(),
                    "; accepted: float32, float64, bfloat16 and float16, or numerics fast");
  }
}

}  // namespace tessera::rules
