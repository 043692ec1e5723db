// What the trainer needs of a language model: logits and a loss. Plain one-device code.
#pragma once

#include <torch/nn/module.h>

#include "tessera/nn/key_value_cache.h"

namespace tessera::models {

// A module from token ids to logits over the next token.
class LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // [batch, length] int64 -> [batch, length, vocabulary].
  //
  // With a cache the tokens follow those that it was given before, in evaluation mode and under NoGradGuard; all
  // together must fit into the model's longest sequence.
  virtual at::Tensor forward(const at::Tensor& tokens, nn::KeyValueCache* cache = nullptr) = 0;

  // The mean cross entropy, in nats per token, of `targets` ([batch, length] int64).
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
};

// Throws unless the tokens are [batch, length] and fit, with `earlier` ones, into `max_seq`. `model` begins the
// message.
void verify_tokens(const char* model, const at::Tensor& tokens, int64_t earlier, int64_t max_seq);

// The elements of all parameters; a tied one counts once.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace tessera::models
