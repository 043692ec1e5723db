// libtorch's own modules in a dtype and with normal initial weights, without touching the global default dtype.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace tessera::nn {

// How weights begin: their dtype, and the standard deviation of their normal distribution around zero.
struct Init {
  at::ScalarType dtype = at::kFloat;
  double std = 0.02;
};

enum class Bias { kNone, kZero };

torch::nn::Linear make_linear(int64_t in, int64_t out, Bias bias, const Init& init);
torch::nn::Embedding make_embedding(int64_t rows, int64_t dim, const Init& init);

// Weight one and bias zero, as libtorch begins them.
torch::nn::LayerNorm make_layer_norm(int64_t dim, double eps, at::ScalarType dtype);

}  // namespace tessera::nn
