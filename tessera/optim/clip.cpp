#include "tessera/optim/clip.h"

#include <cmath>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/exact/squared_norm.h"
#include "tessera/dtensor/front/dtensor.h"
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

std::string layout_of(const at::Tensor& x) {
  return dtensor::is_dtensor(x) ? dtensor::meta_of(x)->spec.layout_str() : "";
}

// Scalars that are at one coordinate of an axis become everybody's: each coordinate tells all of its own at once. So
// they are added in the order of the gradients, whatever stages these are on.
void tell_all(std::vector<at::Tensor>& scalars) {
  std::map<std::string, std::vector<size_t>> elsewhere;  // by layout
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (dtensor::is_dtensor(scalars[i]) && !dtensor::meta_of(scalars[i])->spec->is_everywhere) {
      elsewhere[layout_of(scalars[i])].push_back(i);
    }
  }
  for (const auto& [layout, members] : elsewhere) {
    std::vector<at::Tensor> alike;
    for (const size_t i : members) {
      alike.push_back(scalars[i]);
    }
    const at::Tensor stacked = at::stack(alike);
    const auto all =
        dtensor::redistribute(stacked, dtensor::without_on(dtensor::spec_of(stacked)->placements)).unbind();
    for (size_t k = 0; k < members.size(); ++k) {
      scalars[members[k]] = all[k];
    }
  }
}

// Sums of squares of one layout are stacked unfinished, so that each layout is reduced once.
at::Tensor norm_by_layouts(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> all;
  for (const auto& gradient : gradients) {
    all.push_back(gradient.square().sum());
  }
  tell_all(all);
  std::map<std::string, std::vector<at::Tensor>> squares;
  for (const auto& square : all) {
    squares[layout_of(square)].push_back(square);
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
