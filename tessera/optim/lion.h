// Lion: the sign of a moment as the update.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera::optim {

struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}  // NOLINT(google-explicit-constructor): as libtorch's options
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

struct LionParamState : torch::optim::OptimizerCloneableParamState<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);
};

// The optimizer of Chen et al. (2023): update = sign(beta1 m + (1 - beta1) g), a decay of weights that stands apart,
// m = beta2 m + (1 - beta2) g. Its moment lies as its parameter; a step of a group is one call, with the same bits on
// every layout in both numerics. float32 and float64. A step is collective over the mesh of the parameters where
// gradients lie otherwise than these.
class Lion : public torch::optim::Optimizer {
 public:
  // Throws for a rate or decay below zero and betas outside of [0, 1).
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, LionOptions defaults = {});
  explicit Lion(std::vector<at::Tensor> parameters, LionOptions defaults = {});

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// One step of parameters, gradients and moments that belong together by their places.
void lion_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
               const std::vector<at::Tensor>& averages, const LionOptions& options);

}  // namespace tessera::optim
