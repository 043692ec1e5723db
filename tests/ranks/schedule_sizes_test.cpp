// Schedules and sizes that do not go together well: batches that micro-batches do not divide, stages without layers,
// micro-batches that a schedule's rule refuses.
#include "tessera/base/error.h"
#include "tests/ranks/stage_runs.h"

namespace tessera::ranks::schedule_sizes_test {
namespace {

constexpr auto kAllShards = plan::Sharding::kParameters;

Setting setting_of(int64_t batch, std::optional<sums::Lattice> lattice) {
  return {.steps = 2, .batch = batch, .lattice = lattice, .threads = 1, .clip = clip_to_half};
}

struct Sizes {
  std::string mesh, schedule;
  int64_t batch, micro_batches;
};

void expect_one_devices_bits(const models::LlamaConfig& config, std::optional<sums::Lattice> lattice,
                             const Sizes& sizes) {
  SCOPED_TRACE(c10::str(sizes.batch, " samples in ", sizes.micro_batches, " micro-batches on ", sizes.mesh, ", ",
                        sizes.schedule));
  const Setting setting = setting_of(sizes.batch, lattice);
  const Curve one = train<models::Llama>(setting, config, {.accumulate = sizes.micro_batches});
  const Case c{sizes.mesh, false, sizes.micro_batches, kAllShards, sizes.schedule};
  EXPECT_EQ(difference(one, train<models::Llama>(setting, config, c)), "");
}

TEST(ScheduleSizes, BatchesThatDoNotDivide) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    expect_one_devices_bits(stage_llama(3), {}, {"pp=2", name, 7, 3});
    expect_one_devices_bits(stage_llama(3), {}, {"pp=2", name, 7, 4});   // of 2, 2, 2 and 1 samples
    expect_one_devices_bits(stage_llama(3), {}, {"pp=3", name, 16, 7});  // the last has none
  }
  const sums::Lattice lattice{.batch = 8, .sequence = 1, .feature = 8};
  expect_one_devices_bits(stage_llama(3), lattice, {"pp=2,dp=2", "1f1b", 7, 3});
  expect_one_devices_bits(stage_llama(3), lattice, {"dp=2,pp=2,tp=2", "interleaved", 10, 3});
}

TEST(ScheduleSizes, OneMicroBatch) { expect_one_devices_bits(stage_llama(2), {}, {"pp=2", "1f1b", 4, 1}); }

// A model of one layer is an embedding, the layer, a norm and a head.
TEST(ScheduleSizes, MoreStagesThanLayers) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    expect_one_devices_bits(stage_llama(1), {}, {"pp=4", name, 6, 3});
  }
  expect_one_devices_bits(stage_llama(1), {}, {"pp=8", "1f1b", 6, 3});
}

TEST(ScheduleSizes, TooFewMicroBatchesAreRefused) {
  const Setting setting = setting_of(3, {});
  try {
    train<models::Llama>(setting, stage_llama(4), {"pp=2", false, 4, kAllShards, "dualpipe-v"});
    FAIL() << "three micro-batches were run by dualpipe-v";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("dualpipe-v of 3 micro-batches on 2 ranks, which wants 2 micro-batches a "
                        "rank or more; accepted: 4 micro-batches on 2 ranks"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::ranks::schedule_sizes_test
