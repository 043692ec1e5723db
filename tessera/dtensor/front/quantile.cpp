#include "tessera/dtensor/front/quantile.h"

#include <vector>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include "tessera/base/error.h"

namespace tessera::dtensor {

namespace {

// Where in `sorted` [..., n], whose numbers that are none are its last ones, each of `q` [k] lies: [..., k], between 0
// and n - 1. What has such a number has it as every quantile, unless they do not count.
at::Tensor places_of(const at::Tensor& q, const at::Tensor& sorted, bool without_nan) {
  const at::Tensor is_nan = sorted.isnan();
  if (without_nan) {
    return (q * (is_nan.logical_not().sum(-1, /*keepdim=*/true) - 1)).clamp_min(0);
  }
  const int64_t last = sorted.size(-1) - 1;
  const at::Tensor places = q * last;
  return at::where(is_nan.any(-1, /*keepdim=*/true), at::full_like(places, last), places);
}

// Of each row of `sorted`, at places between its elements.
at::Tensor values_at(const at::Tensor& places, const at::Tensor& sorted, std::string_view interpolation) {
  const auto at_index = [&](const at::Tensor& index) { return sorted.gather(-1, index.to(at::kLong)); };
  if (interpolation == "lower") {
    return at_index(places.floor());
  }
  if (interpolation == "higher") {
    return at_index(places.ceil());
  }
  if (interpolation == "nearest") {
    return at_index(places.round());
  }
  TESSERA_CHECK(interpolation == "linear" || interpolation == "midpoint", "[quantile] interpolation '", interpolation,
                "'; accepted: linear, lower, higher, midpoint, nearest");
  const at::Tensor below = places.floor();
  const at::Tensor weights = interpolation == "midpoint" ? at::full_like(places, 0.5) : places - below;
  return at::lerp(at_index(below), at_index(places.ceil()), weights);
}

void verify(const at::Tensor& self, const at::Tensor& q) {
  TESSERA_CHECK(self.numel() > 0, "[quantile] of a tensor without elements");
  TESSERA_CHECK(self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble, "[quantile] of ",
                self.scalar_type(), "; accepted: float, double");
  TESSERA_CHECK(q.dim() <= 1 && q.scalar_type() == self.scalar_type(), "[quantile] q of ", q.scalar_type(), q.sizes(),
                "; accepted: a number or one dim, of ", self.scalar_type());
  TESSERA_CHECK(at::is_scalar_tensor_true(q.ge(0).logical_and(q.le(1)).all()), "[quantile] q beyond [0, 1]");
}

}  // namespace

at::Tensor quantile(const at::Tensor& self, const c10::IValue& q, const QuantileOptions& options) {
  const at::Tensor wanted = q.isTensor() ? q.toTensor() : at::scalar_tensor(q.toDouble(), self.options());
  verify(self, wanted);
  const bool is_of_row = options.dim && self.dim() > 0;
  const int64_t dim = at::maybe_wrap_dim(options.dim.value_or(0), self.dim());
  const at::Tensor rows = is_of_row ? self.movedim(dim, -1) : self.flatten();
  const at::Tensor sorted = std::get<0>(rows.sort(-1));
  const at::Tensor places = places_of(wanted.dim() > 0 ? wanted : wanted.unsqueeze(0), sorted, options.without_nan);
  at::Tensor found = values_at(places, sorted, options.interpolation);  // [..., of q]
  if (options.keeps_dim && is_of_row) {
    found = found.unsqueeze(dim);
  } else if (options.keeps_dim) {
    std::vector<int64_t> sizes(static_cast<size_t>(self.dim()) + 1, 1);
    sizes.back() = found.size(-1);
    found = found.reshape(sizes);
  }
  return wanted.dim() > 0 ? found.movedim(-1, 0) : found.squeeze(-1);
}

}  // namespace tessera::dtensor
