// A GPT-2-style language model: LayerNorm, learned positions, fused QKV, GELU, dropout. Plain one-device code.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "tessera/dtensor/front/recomputable.h"
#include "tessera/models/language_model.h"

namespace tessera::models {

// The rows of the fused `c_attn` are ordered [heads, (q, k, v), head_dim], not [(q, k, v), heads, head_dim] as in
// GPT-2's files: a whole number of heads is then one contiguous cut of the rows, a plain Shard of unit 3 * head_dim.
struct GptConfig {
  int64_t vocab_size = 256;
  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t max_seq = 256;
  double dropout = 0.1;  // on embeddings, attention probabilities and what enters the residual stream
  double norm_eps = 1e-5;
  bool tie_embeddings = true;  // the output head is the token embedding's weight
  bool fused_attention = false;
  double init_std = 0.02;  // projections into the residual stream: divided by sqrt(2 layers)
  at::ScalarType dtype = at::kFloat;

  int64_t head_dim() const { return dim / heads; }

  // Throws ConfigError, naming the two fields that contradict.
  void verify() const;
};

class GptAttentionImpl : public torch::nn::Module {
 public:
  explicit GptAttentionImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x, nn::LayerCache* cache = nullptr);

  torch::nn::Linear c_attn{nullptr}, c_proj{nullptr};
  torch::nn::Dropout resid_dropout{nullptr};

 private:
  GptConfig config_;
};
TORCH_MODULE(GptAttention);

class GptMlpImpl : public torch::nn::Module {
 public:
  explicit GptMlpImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear c_fc{nullptr}, c_proj{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(GptMlp);

// A plan may have it recomputed, where it has no cache.
class GptBlockImpl : public torch::nn::Module, public dtensor::Recomputable {
 public:
  explicit GptBlockImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x, nn::LayerCache* cache = nullptr);

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  GptAttention attn{nullptr};
  GptMlp mlp{nullptr};

 private:
  at::Tensor run(const at::Tensor& x, nn::LayerCache* cache);
};
TORCH_MODULE(GptBlock);

// Everything below the output head.
class GptBodyImpl : public torch::nn::Module {
 public:
  explicit GptBodyImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& tokens, nn::KeyValueCache* cache = nullptr);

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};

 private:
  GptConfig config_;
};
TORCH_MODULE(GptBody);

// Parameters are named as Hugging Face's GPT2LMHeadModel names them, weights lie as torch::nn::Linear's ([out, in]);
// with tied embeddings there is no lm_head.weight.
class GptImpl : public LanguageModel {
 public:
  explicit GptImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& tokens, nn::KeyValueCache* cache = nullptr) override;

  const GptConfig& config() const { return config_; }

  GptBody transformer{nullptr};
  torch::nn::Linear lm_head{nullptr};  // empty when tied

 private:
  GptConfig config_;
};
TORCH_MODULE(Gpt);

}  // namespace tessera::models
