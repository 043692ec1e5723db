// What a step's closure gives. Internal to this floor.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

namespace tessera::optim {

// The loss that the closure computes, with gradients; undefined where there is none.
inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) {
    return {};
  }
  const at::AutoGradMode with_gradients(true);
  return closure();
}

}  // namespace tessera::optim
