#include "tessera/nn/rotary.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "tessera/base/error.h"

namespace tessera::nn {

RotaryTables rotary_tables(int64_t length, int64_t head_dim, double theta, const at::TensorOptions& options,
                           int64_t first) {
  TESSERA_CHECK(head_dim > 0 && head_dim % 2 == 0, "[rotary] head dim ", head_dim, "; it must be even, to make pairs");
  const at::TensorOptions wide = options.dtype(at::kDouble);
  const double decay = -2.0 * std::log(theta) / static_cast<double>(head_dim);
  const at::Tensor frequency = at::arange(head_dim / 2, wide).mul(decay).exp();
  const at::Tensor angle = at::arange(first, first + length, wide).unsqueeze(1) * frequency;
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  return {angle.cos().to(dtype), angle.sin().to(dtype)};
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryTables& tables) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  const at::Tensor& a = halves[0];
  const at::Tensor& b = halves[1];
  return at::cat({a * tables.cos - b * tables.sin, b * tables.cos + a * tables.sin}, -1);
}

}  // namespace tessera::nn
