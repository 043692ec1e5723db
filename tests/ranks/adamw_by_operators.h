// AdamW as programs spell it out, and steps with it.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/nn/utils/clip_grad.h>

namespace tessera::ranks {

// AdamW by operators on lists, or in one fused call: as torch.optim does with foreach=True and fused=True.
class AdamW {
 public:
  explicit AdamW(bool is_fused) : is_fused_(is_fused) {}

  void operator()(std::vector<at::Tensor>& parameters, int step) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) {
      gradients.push_back(parameter.grad());
      if (step == 1) {
        first.push_back(at::zeros_like(parameter));
        second.push_back(at::zeros_like(parameter));
        steps_.push_back(at::zeros({}, at::kFloat));
      }
    }
    if (is_fused_) {
      at::_foreach_add_(steps_, 1);
      at::_fused_adamw_(parameters, gradients, first, second, {}, steps_, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
      return;
    }
    at::_foreach_mul_(parameters, 1 - 0.1 * 0.01);
    at::_foreach_lerp_(first, gradients, 0.1);
    at::_foreach_mul_(second, 0.99);
    at::_foreach_addcmul_(second, gradients, gradients, 0.01);
    std::vector<at::Tensor> scale = at::_foreach_sqrt(second);
    at::_foreach_div_(scale, std::sqrt(1 - std::pow(0.99, step)));
    at::_foreach_add_(scale, 1e-8);
    at::_foreach_addcdiv_(parameters, first, scale, -0.1 / (1 - std::pow(0.9, step)));
  }

  std::vector<at::Tensor> first, second;

 private:
  bool is_fused_;
  std::vector<at::Tensor> steps_;
};

// Three steps, clipped to a norm of 0.05; the norms that clipping saw.
inline std::vector<double> clipped_steps(std::vector<at::Tensor>& parameters, AdamW& update,
                                         const std::function<at::Tensor()>& loss) {
  std::vector<double> norms;
  for (int step = 1; step <= 3; ++step) {
    loss().backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, 0.05));
    at::NoGradGuard no_grad;
    update(parameters, step);
    for (at::Tensor& parameter : parameters) {
      parameter.mutable_grad().reset();
    }
  }
  return norms;
}

}  // namespace tessera::ranks
