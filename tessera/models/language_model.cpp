#include "tessera/models/language_model.h"

#include <ATen/ops/cross_entropy_loss.h>

namespace tessera::models {

at::Tensor LanguageModel::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return at::cross_entropy_loss(forward(tokens).flatten(0, 1), targets.flatten());
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace tessera::models
