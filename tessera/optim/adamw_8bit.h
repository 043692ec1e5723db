// AdamW whose moments are kept in eight bits.
#pragma once

#include <tuple>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

namespace tessera::optim {

struct AdamW8bitOptions : torch::optim::OptimizerCloneableOptions<AdamW8bitOptions> {
  AdamW8bitOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT(google-explicit-constructor): as libtorch's options
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

// What is kept for a parameter: a code of eight bits for each element and a scale for each block of 256.
struct AdamW8bitParamState : torch::optim::OptimizerCloneableParamState<AdamW8bitParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg_codes);
  TORCH_ARG(at::Tensor, exp_avg_scales);
  TORCH_ARG(at::Tensor, exp_avg_sq_codes);
  TORCH_ARG(at::Tensor, exp_avg_sq_scales);
};

// AdamW with moments in eight bits, block by block, as Dettmers et al. (2022) keep them (kernels/maps/adamw_8bit.h):
// (2 + 8/256) bytes a parameter, over the ranks that cut it. Blocks lie along rows (an index of the first dim; all of a
// parameter of one dim), so that a cut of rows leaves them whole, and the bits are those of one rank on every layout in
// both numerics. Where a cut inside of rows falls into blocks, the moments are cut at the nearest blocks, or rows, and
// the parameter is moved there and back in each step: 2 T (N-1)/N bytes at most. float32. A step is collective over the
// mesh of the parameters where it moves them, or their gradients.
class AdamW8bit : public torch::optim::Optimizer {
 public:
  // Throws for a rate, eps or decay below zero and betas outside of [0, 1).
  explicit AdamW8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamW8bitOptions defaults = {});
  explicit AdamW8bit(std::vector<at::Tensor> parameters, AdamW8bitOptions defaults = {});

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// Moments of zero for a parameter, cut between blocks.
AdamW8bitParamState make_state_8bit(const at::Tensor& parameter);

// One step of parameters, gradients and states that belong together by their places; counts their steps on. State that
// lies otherwise (it was loaded on another mesh) is moved between blocks, in place.
void adamw_8bit_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
                     const std::vector<AdamW8bitParamState*>& states, const AdamW8bitOptions& options);

}  // namespace tessera::optim
