#include "tessera/optim/ema.h"

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/optimizer_ops.h"

namespace tessera::optim {

Ema::Ema(std::vector<at::Tensor> parameters, double decay) : parameters_(std::move(parameters)), decay_(decay) {
  TESSERA_CHECK(decay >= 0 && decay <= 1, "[Ema] decay ", decay, "; accepted: a number in [0, 1]");
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    averages_.push_back(parameter.detach().clone());
  }
}

void Ema::update() {
  TESSERA_CHECK(!is_swapped_, "[Ema] update while the parameters have the averages' values; accepted: after them");
  if (!parameters_.empty()) {
    const at::NoGradGuard no_grad;
    dtensor::ema_step(averages_, parameters_, decay_);
  }
}

void Ema::swap() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor own = parameters_[i].detach().clone();
    parameters_[i].detach().copy_(averages_[i]);
    averages_[i].copy_(own);
  }
  is_swapped_ = !is_swapped_;
}

Ema::Applied::~Applied() {
  try {
    ema_.swap();
  } catch (const std::exception& error) {
    TORCH_WARN("[Ema] the parameters keep the values of their averages: ", error.what());
  }
}

}  // namespace tessera::optim
