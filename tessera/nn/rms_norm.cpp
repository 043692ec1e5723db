#include "tessera/nn/rms_norm.h"

#include <torch/types.h>

namespace tessera::nn {

RMSNormImpl::RMSNormImpl(int64_t dim, double eps, at::ScalarType dtype) : dim_(dim), eps_(eps), dtype_(dtype) {
  RMSNormImpl::reset();
}

void RMSNormImpl::reset() { weight = register_parameter("weight", torch::ones({dim_}, dtype_)); }

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "tessera::nn::RMSNorm(" << dim_ << ", eps=" << eps_ << ")";
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  const bool is_narrow = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  const at::Tensor wide = is_narrow ? x.to(at::kFloat) : x;
  const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add(eps_).rsqrt();
  const at::Tensor normed = wide * scale;
  return (is_narrow ? normed.to(x.scalar_type()) : normed) * weight;
}

}  // namespace tessera::nn
