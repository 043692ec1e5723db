// Every generator on every size: what it makes is right and keeps what it promises, or it refuses the size by its rule.
#include <cstdlib>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/passes.h"
#include "tessera/schedule/replay.h"
#include "tessera/schedule/verify.h"

namespace tessera::schedule::sweep_test {
namespace {

constexpr int64_t kRanks = 16, kMicroBatches = 64;

// Every size with TESSERA_FULL=1; else all small ones, and of the others every eleventh.
bool is_asked(int64_t ranks, int64_t micro_batches) {
  static const bool is_full = std::getenv("TESSERA_FULL") != nullptr;
  return is_full || (ranks <= 5 && micro_batches <= 12) || (ranks * 67 + micro_batches) % 11 == 0;
}

void expect_right(const Family& family, const Sizes& sizes) {
  const auto schedule = make_schedule(family.name, sizes);
  verify_schedule(schedule, {.peak = family.peak(sizes)});
  verify_schedule(add_communication(schedule), {.buffers = sizes.barriers == 0 ? 2 : 3, .peak = family.peak(sizes)});
  const auto replay = replay_schedule(schedule);
  // No rank can be done before it did its work, nor the step before the first micro-batch went there and back.
  const auto ranks = static_cast<double>(sizes.ranks), work = 3.0 * static_cast<double>(sizes.micro_batches);
  constexpr double kRounding = 1e-9;  // of thirds that are added
  EXPECT_GE(replay.makespan * (1 + kRounding), work);
  EXPECT_LE(replay.makespan, 4 * (work + ranks));
}

TEST(ScheduleSweep, EverySizeIsRightOrRefused) {
  for (const Family& family : families()) {
    int64_t made = 0, refused = 0;
    for (int64_t ranks = 1; ranks <= kRanks; ++ranks) {
      for (int64_t micro_batches = 1; micro_batches <= kMicroBatches; ++micro_batches) {
        if (!is_asked(ranks, micro_batches)) {
          continue;
        }
        SCOPED_TRACE(testing::Message() << family.name << " " << ranks << " " << micro_batches);
        Sizes sizes{.ranks = ranks, .micro_batches = micro_batches, .per_rank = family.per_rank};
        if (family.fits != nullptr && !family.fits(sizes)) {
          EXPECT_THROW(make_schedule(family.name, sizes), ConfigError);
          ++refused;
          continue;
        }
        ++made;
        for (int64_t more = 0; more < (family.takes_per_rank ? 3 : 1); ++more, ++sizes.per_rank) {
          ASSERT_NO_THROW(expect_right(family, sizes));
        }
        for (sizes.per_rank = family.per_rank; family.takes_barriers && sizes.barriers < 2;) {
          ++sizes.barriers;
          ASSERT_NO_THROW(expect_right(family, sizes)) << sizes.barriers;
        }
      }
    }
    EXPECT_GT(made, 20) << family.name;
    EXPECT_EQ(refused > 0, family.fits != nullptr) << family.name;
  }
}

}  // namespace
}  // namespace tessera::schedule::sweep_test
