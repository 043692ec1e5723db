// Root mean square normalisation with a weight.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

namespace tessera::nn {

// x / sqrt(mean(x^2 over the last dim) + eps) * weight; computed in float32 for 16-bit inputs. The weight starts at
// one.
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(int64_t dim, double eps = 1e-5, at::ScalarType dtype = at::kFloat);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  int64_t dim_;
  double eps_;
  at::ScalarType dtype_;
};

TORCH_MODULE(RMSNorm);

}  // namespace tessera::nn
