#include "tessera/models/gpt.h"

#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/make.h"

namespace tessera::models {
namespace {

nn::Init inner_init(const GptConfig& config) { return {config.dtype, config.init_std}; }

nn::Init residual_init(const GptConfig& config) {
  return {config.dtype, config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers))};
}

}  // namespace

void GptConfig::verify() const {
  TESSERA_CHECK_AS(ConfigError, std::min({vocab_size, dim, layers, heads, max_seq}) > 0,
                   "[gpt] vocab_size, dim, layers, heads and max_seq must all be positive; got ", vocab_size, ", ", dim,
                   ", ", layers, ", ", heads, ", ", max_seq);
  TESSERA_CHECK_AS(ConfigError, dim % heads == 0, "[gpt] dim ", dim, " with ", heads,
                   " heads; dim must be a multiple of heads");
  TESSERA_CHECK_AS(ConfigError, 0 <= dropout && dropout < 1, "[gpt] dropout ", dropout, "; it must lie in [0, 1)");
}

GptAttentionImpl::GptAttentionImpl(const GptConfig& config) : config_(config) {
  c_attn = register_module("c_attn", nn::make_linear(config.dim, 3 * config.dim, nn::Bias::kZero, inner_init(config)));
  c_proj = register_module("c_proj", nn::make_linear(config.dim, config.dim, nn::Bias::kZero, residual_init(config)));
  resid_dropout = register_module("resid_dropout", torch::nn::Dropout(config.dropout));
}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x, nn::LayerCache* cache) {
  const at::Tensor heads = c_attn(x).unflatten(-1, {config_.heads, 3, config_.head_dim()}).transpose(1, 2);
  const std::vector<at::Tensor> qkv = heads.unbind(3);
  const auto [k, v] = cache != nullptr ? cache->append(qkv[1], qkv[2]) : std::pair(qkv[1], qkv[2]);
  const at::Tensor mixed = nn::causal_attention(
      qkv[0], k, v, {.dropout = config_.dropout, .training = is_training(), .fused = config_.fused_attention});
  return resid_dropout(c_proj(mixed.transpose(1, 2).flatten(2)));
}

GptMlpImpl::GptMlpImpl(const GptConfig& config) {
  c_fc = register_module("c_fc", nn::make_linear(config.dim, 4 * config.dim, nn::Bias::kZero, inner_init(config)));
  c_proj =
      register_module("c_proj", nn::make_linear(4 * config.dim, config.dim, nn::Bias::kZero, residual_init(config)));
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
}

at::Tensor GptMlpImpl::forward(const at::Tensor& x) { return dropout(c_proj(at::gelu(c_fc(x), "tanh"))); }

GptBlockImpl::GptBlockImpl(const GptConfig& config) {
  ln_1 = register_module("ln_1", nn::make_layer_norm(config.dim, config.norm_eps, config.dtype));
  attn = register_module("attn", GptAttention(config));
  ln_2 = register_module("ln_2", nn::make_layer_norm(config.dim, config.norm_eps, config.dtype));
  mlp = register_module("mlp", GptMlp(config));
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x, nn::LayerCache* cache) {
  if (cache != nullptr) {
    return run(x, cache);
  }
  return dtensor::run_block(*this, x, [this](const at::Tensor& in) { return run(in, nullptr); });
}

at::Tensor GptBlockImpl::run(const at::Tensor& x, nn::LayerCache* cache) {
  const at::Tensor attended = x + attn(ln_1(x), cache);
  return attended + mlp(ln_2(attended));
}

GptBodyImpl::GptBodyImpl(const GptConfig& config) : config_(config) {
  wte = register_module("wte", nn::make_embedding(config.vocab_size, config.dim, inner_init(config)));
  wpe = register_module("wpe", nn::make_embedding(config.max_seq, config.dim, inner_init(config)));
  drop = register_module("drop", torch::nn::Dropout(config.dropout));
  h = register_module("h", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) {
    h->push_back(GptBlock(config));
  }
  ln_f = register_module("ln_f", nn::make_layer_norm(config.dim, config.norm_eps, config.dtype));
}

at::Tensor GptBodyImpl::forward(const at::Tensor& tokens, nn::KeyValueCache* cache) {
  const int64_t earlier = cache != nullptr ? cache->length() : 0;
  verify_tokens("gpt", tokens, earlier, config_.max_seq);
  const at::Tensor positions = at::zeros_like(tokens) + at::arange(earlier, earlier + tokens.size(1), tokens.options());
  at::Tensor x = drop(wte(tokens) + wpe(positions));
  for (size_t i = 0; i < h->size(); ++i) {
    x = h->at<GptBlockImpl>(i).forward(x, cache != nullptr ? &cache->layer(i) : nullptr);
  }
  return ln_f(x);
}

GptImpl::GptImpl(const GptConfig& config) : config_(config) {
  config.verify();
  transformer = register_module("transformer", GptBody(config));
  if (!config.tie_embeddings) {
    lm_head =
        register_module("lm_head", nn::make_linear(config.dim, config.vocab_size, nn::Bias::kNone, inner_init(config)));
  }
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, nn::KeyValueCache* cache) {
  const at::Tensor x = transformer(tokens, cache);
  return config_.tie_embeddings ? at::linear(x, transformer->wte->weight) : lm_head(x);
}

}  // namespace tessera::models
