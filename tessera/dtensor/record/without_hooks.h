// Gradients that are taken before they arrive at their leaves.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::dtensor {

// Takes away the hooks of leaves while their gradients are computed aside: they run once, when a node hands the
// gradients on. `leaves` must live longer.
class WithoutHooks {
 public:
  explicit WithoutHooks(const std::vector<at::Tensor>& leaves) : leaves_(leaves) {
    for (const at::Tensor& leaf : leaves) {
      kept_.push_back(std::exchange(torch::autograd::impl::hooks(leaf), {}));
    }
  }
  ~WithoutHooks() {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      torch::autograd::impl::hooks(leaves_[i]) = std::move(kept_[i]);
    }
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  const std::vector<at::Tensor>& leaves_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> kept_;
};

}  // namespace tessera::dtensor
