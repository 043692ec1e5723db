// The flagship: both models, 20 steps in `exact` numerics, the same bits on every layout, of which each test draws
// some.

#include <typeinfo>

#include <gtest/gtest.h>

#include "tessera/optim/clip.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::exact_training_test {
namespace {

template <typename Model, typename Config>
void expect_same_bits(const Setting& setting, const Config& config, const std::vector<Case>& cases) {
  const Curve one = train<Model>(setting, config, {});
  for (const Case& c : support::sampled(cases, 4, c10::str(typeid(Model).name(), cases.size()))) {
    SCOPED_TRACE(c.str());
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

models::LlamaConfig llama() {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 64, config.layers = 2, config.heads = 8, config.kv_heads = 8, config.hidden = 96,
  config.max_seq = 16;
  return config;
}

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 64, config.layers = 2, config.heads = 8, config.max_seq = 16,
  config.dropout = 0.1;
  return config;
}

const std::vector<Case> kCases = {
    {"dp=2"},        {"tp=2"},        {"dp=3"},           {"tp=3"},         {"dp=4"}, {"tp=4"}, {"dp=2,tp=2"},
    {"1", false, 2}, {"1", false, 3}, {"dp=2", false, 4}, {"1", false, 16}, {"dp=8"}, {"tp=8"}, {"dp=3,tp=2", false, 2},
    {"dp=2,tp=4"}};

// A vocabulary and a batch that nothing divides, grouped heads, a tied head: three leaves a micro-batch are cut into.
TEST(Exact, OddSizesGroupedHeadsAndATiedHead) {
  models::LlamaConfig config = llama();
  config.vocab_size = 101, config.kv_heads = 4, config.tie_embeddings = true;
  expect_same_bits<models::Llama>({.batch = 13, .vocabulary = 101, .lattice = sums::Lattice()}, config,
                                  {{"dp=2"},
                                   {"tp=2"},
                                   {"dp=3"},
                                   {"tp=4"},
                                   {"dp=2,tp=2", false, 3},
                                   {"1", false, 5},
                                   {"dp=4", false, 2},
                                   {"1", false, 13}});
}

TEST(Exact, SequenceParallel) {
  const Setting setting = {.lattice = sums::Lattice{.batch = 8, .sequence = 8, .feature = 8}};
  const std::vector<Case> cases = {{"tp=2"},       {"tp=2", true}, {"tp=4", true}, {"dp=2,tp=2", true, 2},
                                   {"tp=8", true}, {"1", false, 3}};
  expect_same_bits<models::Llama>(setting, llama(), cases);
  expect_same_bits<models::Gpt>(setting, gpt(), cases);
}

// Both numerics in float32, on this processor, against training in float64 from the same values; and both in float64.
// AdamW's eps keeps it from scaling up the rounding of single gradients that are nearly zero.
template <typename Model, typename Config>
void expect_rounding_of_fast(Config config, int64_t seed) {
  const Setting fast = {.steps = 20, .learning_rate = 1e-4, .eps = 1e-6, .seed = seed};
  Setting exact = fast;
  exact.lattice = sums::Lattice();
  const Curve in_doubles = train_in_doubles<Model>(fast, config);
  config.dtype = at::kFloat;
  const Distance by_fast = distance(train<Model>(fast, config, {}), in_doubles),
                 by_exact = distance(train<Model>(exact, config, {}), in_doubles);
  std::cout << "exact: " << str(by_exact) << "; fast: " << str(by_fast) << "; " << times_as_far(by_exact, by_fast)
            << " times as far\n";
  EXPECT_LE(times_as_far(by_exact, by_fast), kRounding);

  config.dtype = at::kDouble;
  const Distance apart = distance(train<Model>(exact, config, {}), train<Model>(fast, config, {}));
  EXPECT_LE(std::max({apart.losses, apart.norms, apart.parameters}), 1e-12);
}

TEST(Exact, TrainsAsFastNumericsDo) {
  for (int64_t seed = 7; seed < (is_full() ? 27 : 8); ++seed) {
    expect_rounding_of_fast<models::Llama>(llama(), seed);
    expect_rounding_of_fast<models::Gpt>(gpt(), seed);
  }
}

double clip(const std::vector<at::Tensor>& parameters) {
  return optim::clip_grad_norm(parameters, 1.0).item().toDouble();
}

// With our own norm, and attention by blocks: on one rank that has the bits of its parts.
TEST(Exact, AttentionByBlocksAndTheClipNorm) {
  const std::vector<Case> cases = {{"dp=2"}, {"tp=2"},       {"tp=3"}, {"dp=3"}, {"tp=4"}, {"dp=2,tp=2", false, 2},
                                   {"tp=8"}, {"1", false, 3}};
  const Setting setting = {.lattice = sums::Lattice(), .clip = clip},
                by_positions = {.lattice = sums::Lattice{8, 8, 8}, .clip = clip};
  models::LlamaConfig config = llama();
  const Curve parts = train<models::Llama>(setting, config, {}),
              parts_by_positions = train<models::Llama>(by_positions, config, {});
  config.fused_attention = true;
  EXPECT_EQ(difference(train<models::Llama>(setting, config, {}), parts), "");
  EXPECT_EQ(difference(train<models::Llama>(by_positions, config, {}), parts_by_positions), "");
  EXPECT_NE(difference(parts_by_positions, parts), "");
  expect_same_bits<models::Llama>(setting, config, cases);
  expect_same_bits<models::Llama>(by_positions, config, {{"tp=2", true}, {"dp=2,tp=2", true, 2}});
  models::GptConfig other = gpt();
  other.fused_attention = true, other.dropout = 0;
  expect_same_bits<models::Gpt>(setting, other, cases);
}

// Parameters, activations, gradients and moments in 16 bits.
template <typename Model, typename Config>
void expect_same_bits_in_16(Config config) {
  const std::vector<Case> some = {{"dp=2"}, {"tp=2"}, {"dp=2,tp=2", false, 2}};
  const Setting setting = {
      .steps = kTrainedSteps / 3, .eps = 1e-4, .lattice = sums::Lattice(), .clip = clip};  // 1e-8 is zero in float16
  config.dtype = at::kBFloat16;
  expect_same_bits<Model>(setting, config,
                          {{"dp=2"},
                           {"tp=2"},
                           {"dp=4"},
                           {"tp=4"},
                           {"dp=2,tp=2"},
                           {"1", false, 2},
                           {"dp=2", false, 2},
                           {"tp=2", false, 2},
                           {"dp=2,tp=2", false, 2},
                           {"dp=3,tp=2"},
                           {"1", false, 16}});
  config.dtype = at::kHalf;
  expect_same_bits<Model>(setting, config, some);
  config.dtype = at::kBFloat16;
  config.fused_attention = true;
  expect_same_bits<Model>(setting, config, some);
}

TEST(Exact, LlamaIn16Bits) { expect_same_bits_in_16<models::Llama>(llama()); }
TEST(Exact, GptIn16Bits) { expect_same_bits_in_16<models::Gpt>(gpt()); }

// The same training as in `fast`, which rounds elsewhere.
TEST(Exact, TrainsIn16BitsAsFastNumericsDo) {
  models::LlamaConfig config = llama();
  const Curve wide = train<models::Llama>({.learning_rate = 1e-3, .eps = 1e-6}, config, {});
  config.dtype = at::kBFloat16;
  const Setting fast = {.eps = 1e-6}, exact = {.eps = 1e-6, .lattice = sums::Lattice()};
  const Distance by_fast = distance(train<models::Llama>(fast, config, {}), wide),
                 by_exact = distance(train<models::Llama>(exact, config, {}), wide);
  std::cout << "bfloat16, exact: " << str(by_exact) << "; fast: " << str(by_fast) << "\n";
  EXPECT_LE(times_as_far(by_exact, by_fast), kRounding);
}

TEST(Exact, Llama) { expect_same_bits<models::Llama>({.lattice = sums::Lattice()}, llama(), kCases); }
TEST(Exact, Gpt) { expect_same_bits<models::Gpt>({.lattice = sums::Lattice()}, gpt(), kCases); }

}  // namespace
}  // namespace tessera::ranks::exact_training_test
