// The model zoo: names, counts, ties, causality, training.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"

namespace tessera::models::models_test {
namespace {

LlamaConfig small_llama() {
  return {.vocab_size = 61, .dim = 48, .layers = 2, .heads = 6, .kv_heads = 2, .hidden = 80, .max_seq = 16};
}

GptConfig small_gpt() { return {.vocab_size = 61, .dim = 48, .layers = 2, .heads = 6, .max_seq = 16}; }

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The same tokens in every process: libtorch seeds its default generator by the clock.
at::Tensor random_tokens(int64_t batch, int64_t length) {
  static at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/7);
  return at::randint(61, {batch, length}, generator, at::kLong);
}

// Every model of the zoo, in double precision and in evaluation mode.
std::vector<std::shared_ptr<LanguageModel>> zoo() {
  torch::manual_seed(5);
  std::vector<std::shared_ptr<LanguageModel>> models;
  for (const bool tie : {false, true}) {
    for (const bool fused : {false, true}) {
      LlamaConfig llama = small_llama();
      llama.tie_embeddings = tie;
      llama.fused_attention = fused;
      llama.dtype = at::kDouble;
      models.push_back(Llama(llama).ptr());
      GptConfig gpt = small_gpt();
      gpt.tie_embeddings = tie;
      gpt.fused_attention = fused;
      gpt.dtype = at::kDouble;
      models.push_back(Gpt(gpt).ptr());
    }
  }
  for (const auto& model : models) {
    model->eval();
  }
  return models;
}

TEST(Llama, NamesAreHuggingFaces) {
  std::vector<std::string> expected = {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"input_layernorm.weight", "mlp.down_proj.weight", "mlp.gate_proj.weight",
                             "mlp.up_proj.weight", "post_attention_layernorm.weight", "self_attn.k_proj.weight",
                             "self_attn.o_proj.weight", "self_attn.q_proj.weight", "self_attn.v_proj.weight"}) {
      expected.push_back(layer + name);
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_of(*Llama(small_llama())), expected);
}

TEST(Gpt, NamesAreHuggingFaces) {
  std::vector<std::string> expected = {"transformer.ln_f.bias", "transformer.ln_f.weight", "transformer.wpe.weight",
                                       "transformer.wte.weight"};
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    for (const std::string name : {"attn.c_attn", "attn.c_proj", "ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      expected.push_back(layer + name + ".bias");
      expected.push_back(layer + name + ".weight");
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_of(*Gpt(small_gpt())), expected);
}

TEST(Llama, CountsAndTies) {
  LlamaConfig config = small_llama();
  const int64_t block = 48 * (48 + 16 + 16 + 48) + 3 * 48 * 80 + 2 * 48;
  EXPECT_EQ(parameter_count(*Llama(config)), 2 * 61 * 48 + 48 + 2 * block);
  config.tie_embeddings = true;
  EXPECT_EQ(parameter_count(*Llama(config)), 61 * 48 + 48 + 2 * block);
}

TEST(Gpt, CountsAndTies) {
  GptConfig config = small_gpt();
  const int64_t block = 48 * 144 + 144 + 48 * 48 + 48 + 2 * (48 * 192) + 192 + 48 + 4 * 48;
  EXPECT_EQ(parameter_count(*Gpt(config)), (61 + 16) * 48 + 2 * 48 + 2 * block);
  config.tie_embeddings = false;
  EXPECT_EQ(parameter_count(*Gpt(config)), (61 + 16 + 61) * 48 + 2 * 48 + 2 * block);
}

// The gradient of a tied weight has the head's part and the lookup's part: rows that are never looked up have one.
TEST(Llama, TiedWeightCollectsBothGradients) {
  LlamaConfig config = small_llama();
  config.tie_embeddings = true;
  Llama model(config);
  model->loss(at::zeros({1, 4}, at::kLong), at::ones({1, 4}, at::kLong)).backward();
  const at::Tensor grad = model->model->embed_tokens->weight.grad();
  EXPECT_GT(grad[0].abs().max().item<double>(), 0);
  EXPECT_GT(grad[60].abs().max().item<double>(), 0);
}

TEST(Zoo, ShapesAndUniformStart) {
  const at::Tensor tokens = random_tokens(3, 9);
  for (const auto& model : zoo()) {
    const at::Tensor logits = model->forward(tokens);
    EXPECT_EQ(logits.sizes(), at::IntArrayRef({3, 9, 61}));
    EXPECT_EQ(logits.scalar_type(), at::kDouble);
    const double loss = model->loss(tokens, random_tokens(3, 9)).item<double>();
    EXPECT_NEAR(loss, std::log(61.0), 0.1);
    const at::Tensor by_hand = -logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).mean();
    EXPECT_NEAR(model->loss(tokens, tokens).item<double>(), by_hand.item<double>(), 1e-12);
  }
}

TEST(Zoo, EveryParameterIsInitialisedByItsOwnScale) {
  for (const auto& model : zoo()) {
    for (const auto& parameter : model->named_parameters()) {
      const std::string& name = parameter.key();
      const at::Tensor value = parameter.value().detach();
      EXPECT_EQ(value.scalar_type(), at::kDouble) << name;
      if (value.dim() == 2) {
        const bool is_residual =
            name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") || name.ends_with("c_proj.weight");
        EXPECT_NEAR(value.std().item<double>(), is_residual ? 0.01 : 0.02, 0.002) << name;
      } else {
        EXPECT_TRUE(at::equal(value, at::full_like(value, name.ends_with("bias") ? 0.0 : 1.0))) << name;
      }
    }
  }
}

TEST(Zoo, IsCausal) {
  at::Tensor tokens = random_tokens(2, 10);
  at::Tensor changed = tokens.clone();
  changed.select(1, 6).add_(1).remainder_(61);
  for (const auto& model : zoo()) {
    const at::Tensor difference = (model->forward(tokens) - model->forward(changed)).abs().amax({0, 2});
    EXPECT_LT(difference.slice(0, 0, 6).max().item<double>(), 1e-15);
    EXPECT_GT(difference.slice(0, 6).min().item<double>(), 1e-9);
  }
}

TEST(Zoo, FusedAttentionIsTheSameModel) {
  const auto models = zoo();
  const at::Tensor tokens = random_tokens(2, 10);
  for (const size_t i : {0, 1, 4, 5}) {  // plain; its fused sibling is two further
    torch::NoGradGuard guard;
    const auto fused = models[i + 2]->named_parameters();
    for (const auto& parameter : models[i]->named_parameters()) {
      fused[parameter.key()].copy_(parameter.value());
    }
    EXPECT_LT((models[i]->forward(tokens) - models[i + 2]->forward(tokens)).abs().max().item<double>(), 1e-13) << i;
  }
}

// A few steps on one batch learn it, with dropout on.
TEST(Zoo, Learns) {
  const at::Tensor tokens = random_tokens(2, 12), targets = random_tokens(2, 12);
  for (const auto& model : zoo()) {
    model->train();
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const double before = model->loss(tokens, targets).item<double>();
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      model->loss(tokens, targets).backward();
      optimizer.step();
    }
    model->eval();
    EXPECT_LT(model->loss(tokens, targets).item<double>(), before - 1.0);
  }
}

TEST(Zoo, EveryParameterHasAGradient) {
  const at::Tensor tokens = random_tokens(2, 16);
  for (const auto& model : zoo()) {
    model->loss(tokens, tokens).backward();
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
    }
  }
}

TEST(Gpt, DropsOnlyWhileTraining) {
  Gpt model(small_gpt());
  const at::Tensor tokens = random_tokens(2, 8);
  model->eval();
  EXPECT_TRUE(at::equal(model(tokens), model(tokens)));
  model->train();
  EXPECT_FALSE(at::equal(model(tokens), model(tokens)));
}

// Rows of c_attn are [heads, (q, k, v), head_dim]: the first 3 * head_dim rows are head 0, whole.
TEST(Gpt, FusedRowsAreHeadMajor) {
  GptAttention attention(small_gpt());
  attention->eval();
  torch::NoGradGuard guard;
  const at::Tensor x = at::randn({1, 5, 48});
  attention->c_proj->weight.slice(1, 8).zero_();  // the columns that read the other heads
  EXPECT_GT(attention(x).abs().max().item<double>(), 0);
  attention->c_attn->weight.slice(0, 16, 24).zero_();  // head 0's values
  EXPECT_EQ(attention(x).abs().max().item<double>(), 0);
}

TEST(Zoo, ContradictionsAreConfigErrors) {
  LlamaConfig llama = small_llama();
  llama.kv_heads = 4;
  EXPECT_THROW(Llama{llama}, tessera::ConfigError);
  llama = small_llama();
  llama.heads = 5;
  EXPECT_THROW(Llama{llama}, tessera::ConfigError);
  llama = small_llama();
  llama.layers = 0;
  EXPECT_THROW(Llama{llama}, tessera::ConfigError);
  GptConfig gpt = small_gpt();
  gpt.heads = 7;
  EXPECT_THROW(Gpt{gpt}, tessera::ConfigError);
  gpt = small_gpt();
  gpt.dropout = 1;
  EXPECT_THROW(Gpt{gpt}, tessera::ConfigError);
  EXPECT_THROW(Gpt(small_gpt())->forward(random_tokens(1, 17)), c10::Error);
  EXPECT_THROW(Llama(small_llama())->forward(random_tokens(1, 17)), c10::Error);
}

}  // namespace

}  // namespace tessera::models::models_test
