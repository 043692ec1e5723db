// Blocks that a plan has recomputed: the bits of a model that keeps everything, less memory, the same collectives.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/nn/rotary.h"
#include "tests/ranks/block_models.h"

namespace tessera::ranks::recomputed_blocks_test {
namespace {

using plan::Sharding;
using support::bytes_of;

models::LlamaConfig llama(int64_t layers = 3) {
  models::LlamaConfig config;
  config.vocab_size = 67, config.dim = 32, config.layers = layers, config.heads = 4, config.kv_heads = 2;
  config.hidden = 48, config.max_seq = 16;
  return config;
}

Setting setting_of(std::optional<sums::Lattice> lattice) {
  return {.steps = 4, .batch = 16, .vocabulary = 67, .lattice = lattice};
}

TEST(RecomputedBlocks, HaveTheBitsOfAModelThatKeepsEverything) {
  const sums::Lattice lattice{.batch = 16, .sequence = 2, .feature = 4};
  const Setting keeps = setting_of(lattice);
  Setting again = keeps;
  again.recompute = {"transformer.h.*"};
  const Curve one = train<models::Gpt>(keeps, tied_gpt_with_dropout(), {});
  for (const Case& c : std::vector<Case>{{"1"},
                                         {"1", false, 2},
                                         {"dp=2", false, 2},
                                         {"tp=2", true},
                                         {"fsdp=2"},
                                         {"fsdp=2", false, 2, Sharding::kGradients},
                                         {"fsdp=2,tp=2", false, 2}}) {
    SCOPED_TRACE(c.str());
    EXPECT_EQ(difference(one, train<models::Gpt>(again, tied_gpt_with_dropout(), c)), "");
  }
  again.recompute = {"model.layers.0", "model.layers.2"};
  const Curve llamas = train<models::Llama>(keeps, llama(), {});
  EXPECT_EQ(difference(llamas, train<models::Llama>(again, llama(), {"fsdp=2,tp=2", true, 2})), "");
}

// In `fast` too, on the same layout: nothing is added in another order.
TEST(RecomputedBlocks, HaveTheSameBitsInFast) {
  const Setting keeps = setting_of(std::nullopt);
  Setting again = keeps;
  again.recompute = {"transformer.h.*"};
  for (const Case& c : std::vector<Case>{{"1"}, {"dp=2", false, 2}, {"fsdp=2"}}) {
    SCOPED_TRACE(c.str());
    EXPECT_EQ(difference(train<models::Gpt>(keeps, tied_gpt_with_dropout(), c),
                         train<models::Gpt>(again, tied_gpt_with_dropout(), c)),
              "");
  }
}

constexpr int64_t kBatch = 16, kLength = 16;

// What the graph of one block of the plain model holds, its result included.
double held_by_plain_block(int64_t batch) {
  const auto config = llama();
  models::LlamaBlock block(config);
  const auto rotary = nn::rotary_tables(kLength, config.head_dim(), config.rope_theta, at::TensorOptions(at::kFloat));
  const at::Tensor x = at::randn({batch, kLength, config.dim}).requires_grad_();
  const int64_t before = bytes_of(-1).live;
  const at::Tensor y = block->forward(x, rotary);
  return static_cast<double>(bytes_of(-1).live - before);
}

TEST(RecomputedBlocks, KeepTheirInputAlone) {
  support::count_allocations();
  for (const char* text : {"1", "fsdp=2"}) {
    SCOPED_TRACE(text);
    const auto mesh = Mesh::parse(text);
    const int64_t batch = kBatch / mesh.size();
    const double input = static_cast<double>(batch * kLength * llama().dim * 4), all = held_by_plain_block(batch);
    EXPECT_GT(all, 10 * input);
    const auto added = [&](const std::vector<std::string>& recompute) {
      return added_by_block(llama, {.mesh = mesh, .recompute = recompute}, kBatch, kLength);
    };
    const PassBytes plain = added({}), again = added({"model.layers.*"});
    EXPECT_NEAR(plain.held, all, 0.02 * all);
    EXPECT_NEAR(plain.peak, all, 0.02 * all);
    EXPECT_NEAR(again.held, input, 0.02 * input);
    EXPECT_NEAR(again.peak, input, 0.02 * input);
  }
}

// The second run gathers what the backward pass that follows reads.
TEST(RecomputedBlocks, GatherNoMoreOften) {
  const auto gathers = [](const std::vector<std::string>& recompute) {
    std::pair<int64_t, int64_t> found;
    const auto mesh = Mesh::parse("fsdp=2");
    run_on(mesh, [&](int64_t rank) {
      LlamaLoop loop(llama(), {.mesh = mesh, .recompute = recompute});
      auto& ledger = comm::RankContext::require().ledger;
      ledger.clear();
      loop.forward(4, kLength).backward();
      if (rank == 0) {
        found = {ledger.calls_of("all_gather", "fsdp"), ledger.bytes_of("all_gather", "fsdp")};
      }
    });
    return found;
  };
  const auto plain = gathers({}), again = gathers({"model.layers.*"});
  EXPECT_GT(plain.first, 0);
  EXPECT_EQ(again, plain);
}

std::string failure_of(const std::vector<std::string>& recompute) {
  return failure_on(1, [&](int64_t) { LlamaLoop(llama(), {.mesh = Mesh::parse("1"), .recompute = recompute}); });
}

TEST(RecomputedBlocks, APatternThatMatchesNothingIsRefused) {
  EXPECT_SAYS(failure_of({"layers.*"}),
              "recompute \"layers.*\" matches no module of the model; accepted: patterns over their names, such as "
              "model.layers.*");
  EXPECT_SAYS(failure_of({"model.layers.*", "blocks.*"}), "recompute \"blocks.*\" matches no module");
  EXPECT_SAYS(failure_of({"model.layers.*.mlp"}), "has `model.layers.0.mlp` recomputed");
}

}  // namespace
}  // namespace tessera::ranks::recomputed_blocks_test
