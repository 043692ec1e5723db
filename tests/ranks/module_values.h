// The values of a module, whole, for comparing one construction with another.
#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

#include "tessera/dtensor/front/dtensor.h"

namespace tessera {

using Values = std::map<std::string, at::Tensor>;

// Parameters and buffers, under all their names.
inline Values values_of(const torch::nn::Module& model) {
  Values values;
  at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    values[item.key()] = dtensor::full_tensor(item.value().detach()).clone();
  }
  for (const auto& item : model.named_buffers()) {
    values[item.key()] = dtensor::full_tensor(item.value()).clone();
  }
  return values;
}

}  // namespace tessera
