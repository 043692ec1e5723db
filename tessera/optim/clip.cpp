#include "tessera/optim/clip.h"

#include <cmath>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/squared_norm.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::optim {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (const auto& gradient = parameter.grad(); gradient.defined()) {
      gradients.push_back(gradient.detach());
    }
  }
  return gradients;
}

// Sums of squares of one layout are stacked unfinished, so that each layout is reduced once.
at::Tensor norm_by_layouts(const std::vector<at::Tensor>& gradients) {
  std::map<std::string, std::vector<at::Tensor>> squares;
  for (const auto& gradient : gradients) {
    const auto square = gradient.square().sum();
    squares[dtensor::is_dtensor(square) ? dtensor::meta_of(square)->spec.layout_str() : ""].push_back(square);
  }
  at::Tensor total;
  for (const auto& [layout, of_layout] : squares) {
    const auto sum = at::stack(of_layout).sum();
    total = total.defined() ? total.add(sum) : sum;
  }
  return total.defined() ? total.sqrt() : at::zeros({});
}

bool is_exact() {
  const auto* state = dtensor::RankState::current();
  return state != nullptr && state->exact.lattice().has_value();
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  return is_exact() && !gradients.empty() ? dtensor::joint_norm(gradients) : norm_by_layouts(gradients);
}

at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
  TESSERA_CHECK(max_norm > 0, "[clip_grad_norm] max_norm ", max_norm, "; accepted: a positive number, or infinity");
  const at::NoGradGuard no_grad;
  const auto norm = grad_norm(parameters);
  if (std::isfinite(max_norm)) {
    const auto scale = norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
    for (auto& gradient : gradients_of(parameters)) {
      gradient.mul_(scale);
    }
  }
  return norm;
}

}  // namespace tessera::optim
