// Quantiles of DTensors, of the operators that they are made of. Those of libtorch read memory of what they compute,
// since 2.15.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace tessera::dtensor {

struct QuantileOptions {
  std::optional<int64_t> dim;  // none: of all elements
  bool keeps_dim = false;
  std::string_view interpolation = "linear";
  bool without_nan = false;  // nanquantile
};

// As torch.quantile; `q` is a number, or a tensor of one or of one dim. Throws as it does, of other dtypes than float
// and double, a tensor without elements, and a q beyond [0, 1].
at::Tensor quantile(const at::Tensor& self, const c10::IValue& q, const QuantileOptions& options);

}  // namespace tessera::dtensor
