// A model that runs code of a test in the middle of its passes.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <torch/torch.h>

namespace tessera::ranks {

// Linear layers. After the one in the middle `in_forward` is called with its value, and `in_backward` with that value's
// gradient.
struct HookedLayersImpl : torch::nn::Module {
  using Hook = std::function<void(const at::Tensor&)>;

  HookedLayersImpl(int64_t count, int64_t width, Hook in_forward, Hook in_backward)
      : forward_hook(std::move(in_forward)), backward_hook(std::move(in_backward)) {
    for (int64_t i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
    }
    register_module("layers", layers);
  }

  at::Tensor forward(at::Tensor x) {
    size_t index = 0;
    for (const auto& layer : *layers) {
      x = layer->as<torch::nn::Linear>()->forward(x).tanh();
      if (index++ == layers->size() / 2) {
        if (forward_hook) {
          forward_hook(x);
        }
        if (backward_hook) {
          x.register_hook([this](const at::Tensor& gradient) { backward_hook(gradient); });
        }
      }
    }
    return x.pow(2).mean();
  }

  torch::nn::ModuleList layers;
  Hook forward_hook, backward_hook;
};
TORCH_MODULE(HookedLayers);

}  // namespace tessera::ranks
