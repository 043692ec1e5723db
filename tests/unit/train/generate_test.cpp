// Generation: greedy is the full forward's choice at every step, draws have the model's frequencies, text stays valid.
#include <cmath>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/data/utf8.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/train/run/generate.h"

namespace tessera::train::generate_test {
namespace {

constexpr int64_t kContext = 16;

std::vector<std::shared_ptr<models::LanguageModel>> zoo(int64_t vocabulary = 256) {
  torch::manual_seed(7);
  std::vector<std::shared_ptr<models::LanguageModel>> all = {models::Llama(models::LlamaConfig{.vocab_size = vocabulary,
                                                                                               .dim = 32,
                                                                                               .layers = 2,
                                                                                               .heads = 4,
                                                                                               .kv_heads = 2,
                                                                                               .hidden = 48,
                                                                                               .max_seq = kContext,
                                                                                               .init_std = 0.4,
                                                                                               .dtype = at::kDouble})
                                                                 .ptr(),
                                                             models::Gpt(models::GptConfig{.vocab_size = vocabulary,
                                                                                           .dim = 32,
                                                                                           .layers = 2,
                                                                                           .heads = 4,
                                                                                           .max_seq = kContext,
                                                                                           .init_std = 0.4,
                                                                                           .dtype = at::kDouble})
                                                                 .ptr()};
  for (const auto& model : all) {
    model->eval();
  }
  return all;
}

// The part of a text that the model sees: all of it, or what is left after halving at each time it was full.
size_t window_start(size_t prompt, size_t length) {
  size_t start = prompt - std::min<size_t>(prompt, kContext);
  for (size_t size = prompt; size <= length; ++size) {
    start = size - start > kContext ? size - kContext / 2 : start;
  }
  return start;
}

int32_t full_choice(models::LanguageModel& model, const std::vector<int32_t>& tokens, size_t start) {
  const torch::NoGradGuard no_grad;
  const std::vector<int64_t> seen(tokens.begin() + static_cast<int64_t>(start), tokens.end());
  return static_cast<int32_t>(model.forward(torch::tensor(seen).unsqueeze(0)).select(1, -1).argmax().item<int64_t>());
}

TEST(Generate, GreedyIsTheFullForwardAtEveryStep) {
  for (const auto& model : zoo()) {
    for (const size_t length : {1, 5, 16, 40}) {
      std::vector<int32_t> tokens;
      for (size_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<int32_t>(17 * i % 256));
      }
      const auto made = generate(*model, {.prompt = tokens, .context = kContext, .vocabulary = 256, .end = {}},
                                 {.max_tokens = 60, .temperature = 0});
      ASSERT_EQ(made.size(), 60u);
      EXPECT_GT(std::set<int32_t>(made.begin(), made.end()).size(), 1u);
      for (const int32_t token : made) {
        EXPECT_EQ(token, full_choice(*model, tokens, window_start(length, tokens.size()))) << "at " << tokens.size();
        tokens.push_back(token);
      }
    }
  }
}

TEST(Generate, DrawsAreFunctionsOfSeedAndStep) {
  const auto model = zoo().front();
  const auto made = [&](int64_t seed, int64_t count) {
    return generate(*model, {.prompt = {1, 2}, .context = kContext, .vocabulary = 256, .end = {}},
                    {.max_tokens = count, .temperature = 1, .seed = seed});
  };
  const auto all = made(3, 30), some = made(3, 10);
  EXPECT_EQ(made(3, 30), all);
  EXPECT_EQ(some, std::vector<int32_t>(all.begin(), all.begin() + 10));
  EXPECT_NE(made(4, 30), all);
}

TEST(Generate, StopsAtTheEndAndStaysInTheVocabulary) {
  for (const auto& model : zoo()) {
    const Continuation free{.prompt = {1}, .context = kContext, .vocabulary = 100, .end = {}};
    const GenerateOptions options{.max_tokens = 100, .temperature = 1.5, .seed = 5};
    const auto all = generate(*model, free, options);
    ASSERT_EQ(all.size(), 100u);
    EXPECT_LT(*std::max_element(all.begin(), all.end()), 100);
    auto ended = free;
    ended.end = all[20];
    const auto first = std::find(all.begin(), all.end(), all[20]);
    EXPECT_EQ(generate(*model, ended, options), std::vector<int32_t>(all.begin(), first));
  }
}

// Every uniform number of a fine grid: each token's share is its probability.
std::map<int32_t, double> shares(const std::vector<double>& logits, const GenerateOptions& options) {
  constexpr int kGrid = 20000;
  std::map<int32_t, double> counts;
  for (int i = 0; i < kGrid; ++i) {
    counts[choose_token(logits, options, (i + 0.5) / kGrid)] += 1.0 / kGrid;
  }
  return counts;
}

void expect_shares(const std::vector<double>& logits, const GenerateOptions& options,
                   const std::map<int32_t, double>& expected) {
  const auto found = shares(logits, options);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, share] : expected) {
    ASSERT_TRUE(found.contains(token)) << token;
    EXPECT_NEAR(found.at(token), share, 2e-4) << token;
  }
}

TEST(ChooseToken, HasTheSharesOfItsDefinition) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
  expect_shares(logits, {.temperature = 1}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  expect_shares(logits, {.temperature = 0}, {{1, 1}});
  const double sum = 0.01 + 0.16 + 0.04 + 0.09;
  expect_shares(logits, {.temperature = 0.5}, {{0, 0.01 / sum}, {1, 0.16 / sum}, {2, 0.04 / sum}, {3, 0.09 / sum}});
  expect_shares(logits, {.temperature = 1, .top_k = 2}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares(logits, {.temperature = 1, .top_k = 9}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  expect_shares(logits, {.temperature = 1, .top_p = 0.65}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares(logits, {.temperature = 1, .top_p = 0.75}, {{1, 4.0 / 9}, {3, 3.0 / 9}, {2, 2.0 / 9}});
  expect_shares(logits, {.temperature = 1, .top_p = 1e-9}, {{1, 1}});
  expect_shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.5}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}, {{0, 0.5}, {1, 0.5}});
  expect_shares({-1e9, 0, -1e9}, {.temperature = 1}, {{1, 1}});
  EXPECT_EQ(choose_token(std::vector<double>{0, 0}, {.temperature = 1}, 0), 0);
  EXPECT_EQ(choose_token(std::vector<double>{0, 0}, {.temperature = 1}, std::nextafter(1, 0)), 1);
}

TEST(ChooseToken, RefusesWhatIsNotFinite) {
  const auto nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(choose_token(std::vector<double>{0, nan}, {}, 0.5), c10::Error);
  EXPECT_THROW(choose_token(std::vector<double>{infinity, 0}, {.temperature = 0}, 0.5), c10::Error);
}

TEST(GenerateOptions, OutOfRangeIsRefused) {
  for (const auto& options :
       {GenerateOptions{.max_tokens = 0}, GenerateOptions{.temperature = -1}, GenerateOptions{.top_k = -1},
        GenerateOptions{.top_p = 0}, GenerateOptions{.top_p = 1.5}, GenerateOptions{.temperature = std::nan("")}}) {
    EXPECT_THROW(options.verify(), ConfigError);
  }
}

// A model without training writes any bytes: what is shown is valid all the same, and complete characters only.
TEST(GenerateText, StreamsValidText) {
  for (const auto& model : zoo()) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      std::string shown;
      const auto text = generate_text({model, {}, kContext}, "caf\u00e9",
                                      {.max_tokens = 80, .temperature = 2, .seed = static_cast<int64_t>(seed)},
                                      [&](std::string_view part) {
                                        EXPECT_EQ(data::valid_utf8_prefix(part), part.size());
                                        shown += part;
                                      });
      EXPECT_EQ(shown, text);
    }
  }
}

}  // namespace
}  // namespace tessera::train::generate_test
