// Schedules of pipelines: whatever the order of passes, one device's bits.
#include "tessera/optim/clip.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks::schedules_test {
namespace {

constexpr auto kShards = plan::Sharding::kParameters;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = 3, .batch = 8, .lattice = lattice, .clip = [](const std::vector<at::Tensor>& parameters) {
            return full_tensor(optim::clip_grad_norm(parameters, 0.5)).item().toDouble();
          }};
}

models::LlamaConfig llama(int64_t layers) {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = layers, config.heads = 8, config.kv_heads = 8,
  config.hidden = 48, config.max_seq = 16;
  return config;
}

models::GptConfig gpt(int64_t layers, bool is_tied) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = layers, config.heads = 8, config.max_seq = 16,
  config.dropout = 0.1, config.tie_embeddings = is_tied;
  return config;
}

template <typename Model, typename Config>
void expect_same(const Setting& setting, const Config& config, int64_t micro_batches, const std::vector<Case>& cases) {
  const Curve one = train<Model>(setting, config, {.accumulate = micro_batches});
  EXPECT_GT(*std::min_element(one.norms.begin(), one.norms.end()), 0.5);  // clipping bites
  for (Case c : cases) {
    c.accumulate = micro_batches;
    SCOPED_TRACE(c.str());
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Schedules, InFastHaveOneDevicesBits) {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  expect_same<models::Llama>(on_one_thread, llama(4), 4,
                             {{"pp=2", false, 1, kShards, "gpipe"},
                              {"pp=2", false, 1, kShards, "1f1b"},
                              {"pp=4", false, 1, kShards, "1f1b"},
                              {"pp=2", false, 1, kShards, "interleaved"},
                              {"pp=2", false, 1, kShards, "zb-h1"},
                              {"pp=4", false, 1, kShards, "zb-h2"},
                              {"pp=2", false, 1, kShards, "zbv"},
                              {"pp=2", false, 1, kShards, "v-half"},
                              {"pp=2", false, 1, kShards, "v-min"},
                              {"pp=2", false, 1, kShards, "dualpipev"}});
  expect_same<models::Gpt>(on_one_thread, gpt(3, false), 3, {{"pp=2", false, 1, kShards, "1f1b"}});
  expect_same<models::Gpt>(on_one_thread, gpt(3, true), 4,
                           {{"pp=2", false, 1, kShards, "zb-h1"}, {"pp=2", false, 1, kShards, "zbv"}});
}

TEST(Schedules, InExactHaveOneHash) {
  const sums::Lattice lattice{.batch = 8, .sequence = 4, .feature = 8};
  expect_same<models::Llama>(setting(lattice), llama(4), 4,
                             {{"pp=2,tp=2", true, 1, kShards, "1f1b"}, {"pp=2", false, 1, kShards, "interleaved"}});
  expect_same<models::Gpt>(setting(lattice), gpt(3, true), 4,
                           {{"pp=2", false, 1, kShards, "1f1b"},
                            {"pp=2", false, 1, kShards, "interleaved"},
                            {"pp=2", false, 1, kShards, "zb-h1"},
                            {"pp=4", false, 1, kShards, "zb-h2"},
                            {"pp=2", false, 1, kShards, "zbv"},
                            {"pp=2", false, 1, kShards, "v-half"},
                            {"pp=2", false, 1, kShards, "v-min"},
                            {"pp=2", false, 1, kShards, "dualpipev"},
                            {"pp=4", false, 1, kShards, "gpipe"}});
}

}  // namespace
}  // namespace tessera::ranks::schedules_test
