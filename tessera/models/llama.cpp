#include "tessera/models/llama.h"

#include <cmath>

#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include "tessera/base/error.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/make.h"

namespace tessera::models {
namespace {

nn::Init init_of(const LlamaConfig& config) { return {config.dtype, config.init_std}; }

nn::Init residual_init_of(const LlamaConfig& config) {
  return {config.dtype, config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers))};
}

torch::nn::Linear projection(int64_t in, int64_t out, const nn::Init& init) {
  return nn::make_linear(in, out, nn::Bias::kNone, init);
}

}  // namespace

void LlamaConfig::verify() const {
  TESSERA_CHECK_AS(ConfigError, std::min({vocab_size, dim, layers, heads, kv_heads, hidden, max_seq}) > 0,
                   "[llama] vocab_size, dim, layers, heads, kv_heads, hidden and max_seq must all be positive; got ",
                   vocab_size, ", ", dim, ", ", layers, ", ", heads, ", ", kv_heads, ", ", hidden, ", ", max_seq);
  TESSERA_CHECK_AS(ConfigError, dim % heads == 0 && head_dim() % 2 == 0, "[llama] dim ", dim, " with ", heads,
                   " heads; dim must be an even multiple of heads (rotary embedding turns pairs)");
  TESSERA_CHECK_AS(ConfigError, heads % kv_heads == 0, "[llama] ", heads, " heads with ", kv_heads,
                   " kv_heads; heads must be a multiple of kv_heads");
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config) : config_(config) {
  const int64_t kv_dim = config.kv_heads * config.head_dim();
  q_proj = register_module("q_proj", projection(config.dim, config.dim, init_of(config)));
  k_proj = register_module("k_proj", projection(config.dim, kv_dim, init_of(config)));
  v_proj = register_module("v_proj", projection(config.dim, kv_dim, init_of(config)));
  o_proj = register_module("o_proj", projection(config.dim, config.dim, residual_init_of(config)));
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache) {
  const auto heads_of = [&](const at::Tensor& y, int64_t heads) {
    return y.unflatten(-1, {heads, config_.head_dim()}).transpose(1, 2);
  };
  const int64_t group = config_.heads / config_.kv_heads;
  const at::Tensor q = nn::apply_rotary(heads_of(q_proj(x), config_.heads), rotary);
  at::Tensor k = nn::apply_rotary(heads_of(k_proj(x), config_.kv_heads), rotary);
  at::Tensor v = heads_of(v_proj(x), config_.kv_heads);
  if (cache != nullptr) {
    std::tie(k, v) = cache->append(k, v);
  }
  const at::Tensor mixed = nn::causal_attention(q, nn::repeat_heads(k, group), nn::repeat_heads(v, group),
                                                {.fused = config_.fused_attention});
  return o_proj(mixed.transpose(1, 2).flatten(2));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config) {
  gate_proj = register_module("gate_proj", projection(config.dim, config.hidden, init_of(config)));
  up_proj = register_module("up_proj", projection(config.dim, config.hidden, init_of(config)));
  down_proj = register_module("down_proj", projection(config.hidden, config.dim, residual_init_of(config)));
}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x) { return down_proj(at::silu(gate_proj(x)) * up_proj(x)); }

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config) {
  input_layernorm = register_module("input_layernorm", nn::RMSNorm(config.dim, config.norm_eps, config.dtype));
  self_attn = register_module("self_attn", LlamaAttention(config));
  post_attention_layernorm =
      register_module("post_attention_layernorm", nn::RMSNorm(config.dim, config.norm_eps, config.dtype));
  mlp = register_module("mlp", LlamaMlp(config));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache) {
  if (cache != nullptr) {
    return run(x, rotary, cache);
  }
  return dtensor::run_block(*this, x, [this, rotary](const at::Tensor& in) { return run(in, rotary, nullptr); });
}

at::Tensor LlamaBlockImpl::run(const at::Tensor& x, const nn::RotaryTables& rotary, nn::LayerCache* cache) {
  const at::Tensor attended = x + self_attn(input_layernorm(x), rotary, cache);
  return attended + mlp(post_attention_layernorm(attended));
}

LlamaBodyImpl::LlamaBodyImpl(const LlamaConfig& config) : config_(config) {
  embed_tokens = register_module("embed_tokens", nn::make_embedding(config.vocab_size, config.dim, init_of(config)));
  layers = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(LlamaBlock(config));
  }
  norm = register_module("norm", nn::RMSNorm(config.dim, config.norm_eps, config.dtype));
}

at::Tensor LlamaBodyImpl::forward(const at::Tensor& tokens, nn::KeyValueCache* cache) {
  const int64_t earlier = cache != nullptr ? cache->length() : 0;
  verify_tokens("llama", tokens, earlier, config_.max_seq);
  at::Tensor x = embed_tokens(tokens);
  const nn::RotaryTables rotary =
      nn::rotary_tables(tokens.size(1), config_.head_dim(), config_.rope_theta, x.options(), earlier);
  for (size_t i = 0; i < layers->size(); ++i) {
    x = layers->at<LlamaBlockImpl>(i).forward(x, rotary, cache != nullptr ? &cache->layer(i) : nullptr);
  }
  return norm(x);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config) : config_(config) {
  config.verify();
  model = register_module("model", LlamaBody(config));
  if (!config.tie_embeddings) {
    lm_head = register_module("lm_head", projection(config.dim, config.vocab_size, init_of(config)));
  }
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens, nn::KeyValueCache* cache) {
  const at::Tensor x = model(tokens, cache);
  return config_.tie_embeddings ? at::linear(x, model->embed_tokens->weight) : lm_head(x);
}

}  // namespace tessera::models
