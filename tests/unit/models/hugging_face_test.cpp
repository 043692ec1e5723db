// Parameters in Hugging Face's form: names, there and back, and that its arithmetic makes the same logits of them.
#include "tessera/models/hugging_face.h"

#include <cmath>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models::hugging_face_test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

GptConfig small_gpt(bool is_tied) {
  return {.vocab_size = 61,
          .dim = 48,
          .layers = 2,
          .heads = 6,
          .max_seq = 16,
          .dropout = 0,
          .tie_embeddings = is_tied,
          .dtype = at::kDouble};
}

// Every parameter random, biases too.
Tensors random_parameters(torch::nn::Module& module) {
  const torch::NoGradGuard guard;
  Tensors tensors;
  for (const auto& parameter : module.named_parameters()) {
    parameter.value().normal_(0, 0.2);
    tensors.emplace(parameter.key(), parameter.value().detach().clone());
  }
  return tensors;
}

// GPT2LMHeadModel(vocab_size=61, n_positions=16, n_embd=48, n_layer=2, n_head=6).state_dict(), tied weights once.
const std::map<std::string, std::vector<int64_t>> kGpt2 = {
    {"transformer.wte.weight", {61, 48}},
    {"transformer.wpe.weight", {16, 48}},
    {"transformer.h.0.ln_1.weight", {48}},
    {"transformer.h.0.ln_1.bias", {48}},
    {"transformer.h.0.attn.c_attn.weight", {48, 144}},
    {"transformer.h.0.attn.c_attn.bias", {144}},
    {"transformer.h.0.attn.c_proj.weight", {48, 48}},
    {"transformer.h.0.attn.c_proj.bias", {48}},
    {"transformer.h.0.ln_2.weight", {48}},
    {"transformer.h.0.ln_2.bias", {48}},
    {"transformer.h.0.mlp.c_fc.weight", {48, 192}},
    {"transformer.h.0.mlp.c_fc.bias", {192}},
    {"transformer.h.0.mlp.c_proj.weight", {192, 48}},
    {"transformer.h.0.mlp.c_proj.bias", {48}},
    {"transformer.h.1.ln_1.weight", {48}},
    {"transformer.h.1.ln_1.bias", {48}},
    {"transformer.h.1.attn.c_attn.weight", {48, 144}},
    {"transformer.h.1.attn.c_attn.bias", {144}},
    {"transformer.h.1.attn.c_proj.weight", {48, 48}},
    {"transformer.h.1.attn.c_proj.bias", {48}},
    {"transformer.h.1.ln_2.weight", {48}},
    {"transformer.h.1.ln_2.bias", {48}},
    {"transformer.h.1.mlp.c_fc.weight", {48, 192}},
    {"transformer.h.1.mlp.c_fc.bias", {192}},
    {"transformer.h.1.mlp.c_proj.weight", {192, 48}},
    {"transformer.h.1.mlp.c_proj.bias", {48}},
    {"transformer.ln_f.weight", {48}},
    {"transformer.ln_f.bias", {48}},
};

std::map<std::string, std::vector<int64_t>> sizes_of(const Tensors& tensors) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const auto& [name, tensor] : tensors) {
    sizes.emplace(name, tensor.sizes().vec());
  }
  return sizes;
}

void expect_there_and_back(const catalogue::NameMap& map, const Tensors& tensors) {
  const Tensors back = map.inverse().tensors(map.tensors(tensors));
  ASSERT_EQ(sizes_of(back), sizes_of(tensors));
  for (const auto& [name, tensor] : back) {
    EXPECT_TRUE(at::equal(tensor, tensors.at(name))) << name;
  }
}

// What GPT2LMHeadModel computes: y = x W + b in its Conv1D, Q, K and V one after the other.
at::Tensor gpt2_logits(const Tensors& tensors, const GptConfig& config, const at::Tensor& tokens) {
  const auto get = [&](const std::string& name) { return tensors.at("transformer." + name); };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {config.dim}, get(name + ".weight"), get(name + ".bias"), config.norm_eps);
  };
  const auto conv1d = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, get(name + ".weight")) + get(name + ".bias");
  };
  const int64_t length = tokens.size(1);
  const at::Tensor is_later = at::ones({length, length}, at::kBool).triu(1);
  at::Tensor x = get("wte.weight").index({tokens}) + get("wpe.weight").narrow(0, 0, length);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    std::vector<at::Tensor> qkv = conv1d(norm(x, block + "ln_1"), block + "attn.c_attn").split(config.dim, 2);
    for (at::Tensor& part : qkv) {
      part = part.view({tokens.size(0), length, config.heads, config.head_dim()}).transpose(1, 2);
    }
    const double scale = std::sqrt(static_cast<double>(config.head_dim()));
    const at::Tensor scores = (at::matmul(qkv[0], qkv[1].transpose(2, 3)) / scale).masked_fill(is_later, -INFINITY);
    const at::Tensor mixed = at::matmul(scores.softmax(-1), qkv[2]).transpose(1, 2).flatten(2);
    x = x + conv1d(mixed, block + "attn.c_proj");
    x = x + conv1d(at::gelu(conv1d(norm(x, block + "ln_2"), block + "mlp.c_fc"), "tanh"), block + "mlp.c_proj");
  }
  const auto head = tensors.find("lm_head.weight");
  return at::linear(norm(x, "ln_f"), head == tensors.end() ? get("wte.weight") : head->second);
}

TEST(HuggingFace, GptHasTheNamesAndSizesOfGpt2) {
  Gpt tied(small_gpt(true)), untied(small_gpt(false));
  const auto map = hugging_face_names(tied->config());
  EXPECT_EQ(map.sizes(sizes_of(random_parameters(*tied))), kGpt2);
  auto with_head = kGpt2;
  with_head.emplace("lm_head.weight", std::vector<int64_t>{61, 48});
  EXPECT_EQ(map.sizes(sizes_of(random_parameters(*untied))), with_head);
  EXPECT_THROW(map.at("transformer.h.0.attn.masked_bias"), DataError);
}

TEST(HuggingFace, Gpt2MakesTheSameLogitsOfOurGptsTensors) {
  for (bool is_tied : {true, false}) {
    Gpt model(small_gpt(is_tied));
    const Tensors ours = random_parameters(*model);
    const auto map = hugging_face_names(model->config());
    expect_there_and_back(map, ours);
    const torch::NoGradGuard guard;
    const at::Tensor tokens = at::randint(61, {3, 11}, at::kLong);
    const at::Tensor expected = model->forward(tokens);
    EXPECT_TRUE(at::allclose(gpt2_logits(map.tensors(ours), model->config(), tokens), expected, 1e-10, 1e-10));
  }
}

TEST(HuggingFace, LlamaHasTheNamesAndFormsOfLlama) {
  const LlamaConfig config{.vocab_size = 61, .dim = 48, .layers = 2, .heads = 6, .kv_heads = 2, .hidden = 80};
  Llama model(config);
  const Tensors ours = random_parameters(*model);
  const auto map = hugging_face_names(config);
  expect_there_and_back(map, ours);
  EXPECT_EQ(map.sizes(sizes_of(ours)), sizes_of(ours));
  EXPECT_TRUE(ours.contains("model.layers.1.self_attn.k_proj.weight"));
  EXPECT_THROW(map.at("model.layers.0.self_attn.rotary_emb.inv_freq"), DataError);
}

}  // namespace
}  // namespace tessera::models::hugging_face_test
