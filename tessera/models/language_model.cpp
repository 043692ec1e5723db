#include "tessera/models/language_model.h"

#include <ATen/ops/cross_entropy_loss.h>

#include "tessera/base/error.h"

namespace tessera::models {

at::Tensor LanguageModel::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return at::cross_entropy_loss(forward(tokens).flatten(0, 1), targets.flatten());
}

void verify_tokens(const char* model, const at::Tensor& tokens, int64_t earlier, int64_t max_seq) {
  TESSERA_CHECK(tokens.dim() == 2 && earlier + tokens.size(1) <= max_seq, "[", model, "] tokens of sizes ",
                tokens.sizes(), earlier > 0 ? c10::str(" behind ", earlier, " earlier ones") : "",
                "; accepted: [batch, length] with length at most max_seq = ", max_seq);
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace tessera::models
