// Products of matrices in `exact` numerics.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::rules::exact {

// out[i] = a[i] b[i], or out[i] + a[i] b[i] by one addition, of [batch, rows, columns] each and of any strides. a and b
// are of one dtype: float or double as `out` is, or 16 bits wide with `out` in float. A sum is cut into leaves of
// `leaf` terms, 0: it is one (kernels::Product). Throws for other dtypes.
void run_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t leaf, bool accumulate);

}  // namespace tessera::rules::exact
