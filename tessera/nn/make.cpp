#include "tessera/nn/make.h"

#include <torch/nn/init.h>

namespace tessera::nn {
namespace {

void set_dtype(torch::nn::Module& module, at::ScalarType dtype) {
  if (module.parameters().front().scalar_type() != dtype) {
    module.to(dtype);
  }
}

}  // namespace

torch::nn::Linear make_linear(int64_t in, int64_t out, Bias bias, const Init& init) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(bias == Bias::kZero));
  set_dtype(*linear, init.dtype);
  torch::nn::init::normal_(linear->weight, 0.0, init.std);
  if (bias == Bias::kZero) {
    torch::nn::init::zeros_(linear->bias);
  }
  return linear;
}

torch::nn::Embedding make_embedding(int64_t rows, int64_t dim, const Init& init) {
  torch::nn::Embedding embedding(rows, dim);
  set_dtype(*embedding, init.dtype);
  torch::nn::init::normal_(embedding->weight, 0.0, init.std);
  return embedding;
}

torch::nn::LayerNorm make_layer_norm(int64_t dim, double eps, at::ScalarType dtype) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({dim}).eps(eps));
  set_dtype(*norm, dtype);
  return norm;
}

}  // namespace tessera::nn
