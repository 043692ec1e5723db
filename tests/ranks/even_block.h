// A block of a model of which it is known what it keeps for backward.
#pragma once

#include <torch/torch.h>

#include "tessera/dtensor/front/recomputable.h"

namespace tessera::ranks {

// Keeps 10 tensors of its width for backward: what goes into both products (1 and 4), into gelu (4) and into sin. Its
// weight pass needs as many: what goes into both products, and the gradients of what comes out (4 and 1).
struct EvenBlockImpl : torch::nn::Module, dtensor::Recomputable {
  static constexpr int64_t kKept = 10;

  explicit EvenBlockImpl(int64_t width) : up(options(width, 4 * width)), down(options(4 * width, width)) {
    register_module("up", up);
    register_module("down", down);
  }
  static torch::nn::LinearOptions options(int64_t in, int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    return dtensor::run_block(*this, x, [this](const at::Tensor& in) { return in + down(at::gelu(up(in))).sin(); });
  }

  torch::nn::Linear up, down;
};
TORCH_MODULE(EvenBlock);

// Equal blocks and nothing else, so that every stage keeps as much. Gives a loss.
struct EvenTowerImpl : torch::nn::Module {
  EvenTowerImpl(int64_t blocks, int64_t width) {
    for (int64_t i = 0; i < blocks; ++i) {
      layers->push_back(EvenBlock(width));
    }
    register_module("layers", layers);
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<EvenBlock>()->forward(x);
    }
    return x.pow(2).mean();
  }

  torch::nn::ModuleList layers;
};
TORCH_MODULE(EvenTower);

}  // namespace tessera::ranks
