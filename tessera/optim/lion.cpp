#include "tessera/optim/lion.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/optimizer_ops.h"
#include "tessera/optim/closure.h"

namespace tessera::optim {
namespace {

void verify_lion(const LionOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const auto is_share = [](double beta) { return beta >= 0 && beta < 1; };
  TESSERA_CHECK(options.lr() >= 0 && options.weight_decay() >= 0 && is_share(beta1) && is_share(beta2), "[Lion] lr ",
                options.lr(), ", betas ", beta1, " and ", beta2, ", weight_decay ", options.weight_decay(),
                "; accepted: lr and weight_decay of 0 or more, betas in [0, 1)");
}

}  // namespace

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, LionOptions defaults)
    : Optimizer(groups, std::make_unique<LionOptions>(defaults)) {
  for (const auto& group : param_groups()) {
    verify_lion(static_cast<const LionOptions&>(group.options()));
  }
}

Lion::Lion(std::vector<at::Tensor> parameters, LionOptions defaults)
    : Lion({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

torch::Tensor Lion::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    std::vector<at::Tensor> parameters, gradients, averages;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) {
        auto made = std::make_unique<LionParamState>();
        made->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        state = std::move(made);
      }
      parameters.push_back(parameter), gradients.push_back(parameter.grad());
      averages.push_back(static_cast<LionParamState&>(*state).exp_avg());
    }
    lion_step(parameters, gradients, averages, static_cast<const LionOptions&>(group.options()));
  }
  return loss;
}

void lion_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
               const std::vector<at::Tensor>& averages, const LionOptions& options) {
  if (parameters.empty()) {
    return;
  }
  const auto [beta1, beta2] = options.betas();
  dtensor::lion_step(parameters, gradients, averages,
                     {options.lr(), beta1, beta2, options.weight_decay(), options.maximize()});
}

}  // namespace tessera::optim
