// Models with a cache of keys and values give what they give without one, however the text is cut.
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"

namespace tessera::models::cache_test {

using tessera::nn::KeyValueCache;

namespace {

constexpr int64_t kLongest = 24;

std::vector<std::shared_ptr<LanguageModel>> zoo() {
  torch::manual_seed(11);
  std::vector<std::shared_ptr<LanguageModel>> models;
  for (const bool fused : {false, true}) {
    models.push_back(Llama(LlamaConfig{.vocab_size = 61,
                                       .dim = 48,
                                       .layers = 3,
                                       .heads = 6,
                                       .kv_heads = 2,
                                       .hidden = 80,
                                       .max_seq = kLongest,
                                       .fused_attention = fused,
                                       .init_std = 0.2,
                                       .dtype = at::kDouble})
                         .ptr());
    models.push_back(Gpt(GptConfig{.vocab_size = 61,
                                   .dim = 48,
                                   .layers = 3,
                                   .heads = 6,
                                   .max_seq = kLongest,
                                   .fused_attention = fused,
                                   .init_std = 0.2,
                                   .dtype = at::kDouble})
                         .ptr());
  }
  for (const auto& model : models) {
    model->eval();
  }
  return models;
}

TEST(KeyValueCache, AnyCutOfATextGivesTheSameLogits) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const torch::NoGradGuard no_grad;
  for (const auto& model : zoo()) {
    for (int trial = 0; trial < 5; ++trial) {
      const auto tokens = torch::randint(61, {2, kLongest}, torch::kLong);
      const auto whole = model->forward(tokens);
      KeyValueCache cache;
      std::vector<at::Tensor> parts;
      for (int64_t at = 0; at < kLongest;) {
        const auto count = std::min<int64_t>(1 + static_cast<int64_t>(random() % 6), kLongest - at);
        EXPECT_EQ(cache.length(), at);
        parts.push_back(model->forward(tokens.slice(1, at, at + count), &cache));
        at += count;
      }
      EXPECT_LT((torch::cat(parts, 1) - whole).abs().max().item<double>(), 1e-11);
    }
  }
}

// The control: a cache that lost a token is noticed.
TEST(KeyValueCache, ALostTokenIsSeen) {
  const torch::NoGradGuard no_grad;
  for (const auto& model : zoo()) {
    const auto tokens = torch::randint(61, {1, 8}, torch::kLong);
    KeyValueCache cache;
    model->forward(tokens.slice(1, 1, 7), &cache);
    const auto last = model->forward(tokens.slice(1, 7, 8), &cache);
    EXPECT_GT((last.select(1, 0) - model->forward(tokens).select(1, 7)).abs().max().item<double>(), 1e-6);
  }
}

TEST(KeyValueCache, HoldsNoMoreThanTheModelsLongestText) {
  const torch::NoGradGuard no_grad;
  for (const auto& model : zoo()) {
    KeyValueCache cache;
    model->forward(torch::zeros({1, kLongest - 1}, torch::kLong), &cache);
    EXPECT_THROW(model->forward(torch::zeros({1, 2}, torch::kLong), &cache), c10::Error);
    cache.clear();
    EXPECT_EQ(cache.length(), 0);
    EXPECT_NO_THROW(model->forward(torch::zeros({1, kLongest}, torch::kLong), &cache));
  }
}

}  // namespace

}  // namespace tessera::models::cache_test
