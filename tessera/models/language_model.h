// What the trainer needs of a language model: logits and a loss. Plain one-device code.
#pragma once

#include <torch/nn/module.h>

namespace tessera::models {

// A module from token ids to logits over the next token.
class LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // [batch, length] int64 -> [batch, length, vocabulary].
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;

  // The mean cross entropy, in nats per token, of `targets` ([batch, length] int64).
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
};

// The elements of all parameters; a tied one counts once.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace tessera::models
