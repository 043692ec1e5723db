// A Llama-style language model: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Plain one-device code.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "tessera/dtensor/front/recomputable.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/rms_norm.h"
#include "tessera/nn/rotary.h"

namespace tessera::models {

struct LlamaConfig {
  int64_t vocab_size = 256;
  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t hidden = 384;
  int64_t max_seq = 256;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;  // the output head is the embedding's weight
  bool fused_attention = false;
  double init_std = 0.02;  // projections into the residual stream: divided by sqrt(2 layers)
  at::ScalarType dtype = at::kFloat;

  int64_t head_dim() const { return dim / heads; }

  // Throws ConfigError, naming the two fields that contradict.
  void verify() const;
};

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache = nullptr);

  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};

 private:
  LlamaConfig config_;
};
TORCH_MODULE(LlamaAttention);

// down(silu(gate(x)) * up(x)).
class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaMlp);

// A plan may have it recomputed, where it has no cache.
class LlamaBlockImpl : public torch::nn::Module, public dtensor::Recomputable {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache = nullptr);

  nn::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  LlamaAttention self_attn{nullptr};
  LlamaMlp mlp{nullptr};

 private:
  at::Tensor run(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache);
};
TORCH_MODULE(LlamaBlock);

// Everything below the output head.
class LlamaBodyImpl : public torch::nn::Module {
 public:
  explicit LlamaBodyImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens, nn::KeyValueCache* cache = nullptr);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};
  nn::RMSNorm norm{nullptr};

 private:
  LlamaConfig config_;
};
TORCH_MODULE(LlamaBody);

// Parameters are named as Hugging Face's LlamaForCausalLM names them; with tied embeddings there is no lm_head.weight.
class LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens, nn::KeyValueCache* cache = nullptr) override;

  const LlamaConfig& config() const { return config_; }

  LlamaBody model{nullptr};
  torch::nn::Linear lm_head{nullptr};  // empty when tied

 private:
  LlamaConfig config_;
};
TORCH_MODULE(Llama);

}  // namespace tessera::models
