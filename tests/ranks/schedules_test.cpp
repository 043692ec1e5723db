// Schedules of pipelines: whatever the order of passes, one device's bits.
#include "tests/ranks/stage_runs.h"

namespace tessera::ranks::schedules_test {
namespace {

constexpr auto kShards = plan::Sharding::kParameters;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = 3, .batch = 8, .lattice = lattice, .clip = clip_to_half};
}

template <typename Model, typename Config>
void expect_same(const Setting& setting, const Config& config, int64_t micro_batches, std::vector<Case> cases) {
  for (Case& c : cases) {
    c.accumulate = micro_batches;
  }
  expect_one_ranks_bits<Model>(setting, config, micro_batches, cases);
}

TEST(Schedules, InFastHaveOneDevicesBits) {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  expect_same<models::Llama>(on_one_thread, stage_llama(4), 4,
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
  expect_same<models::Gpt>(on_one_thread, stage_gpt(3, false), 3, {{"pp=2", false, 1, kShards, "1f1b"}});
  expect_same<models::Gpt>(on_one_thread, stage_gpt(3, true), 4,
                           {{"pp=2", false, 1, kShards, "zb-h1"}, {"pp=2", false, 1, kShards, "zbv"}});
}

TEST(Schedules, InExactHaveOneHash) {
  const sums::Lattice lattice{.batch = 8, .sequence = 4, .feature = 8};
  expect_same<models::Llama>(setting(lattice), stage_llama(4), 4,
                             {{"pp=2,tp=2", true, 1, kShards, "1f1b"}, {"pp=2", false, 1, kShards, "interleaved"}});
  expect_same<models::Gpt>(setting(lattice), stage_gpt(3, true), 4,
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
