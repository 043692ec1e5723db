// Products of matrices in `exact` numerics.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::rules::exact {

// out[i] = a[i] b[i], or out[i] + a[i] b[i] by one addition, of [batch, rows, columns] each, float or double and of any
// strides. A sum is cut into leaves of `leaf` terms, 0: it is one (kernels::Product). Throws for other dtypes.
void run_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t leaf, bool accumulate);

}  // namespace tessera::rules::exact
