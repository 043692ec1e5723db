#include "tessera/optim/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace tessera::optim::schedule_test {
namespace {

TEST(WarmupCosine, HasItsClosedForm) {
  const WarmupCosine rate{.peak = 3e-3, .floor = 3e-4, .warmup = 10, .steps = 110};
  EXPECT_DOUBLE_EQ(rate(0), 3e-4);
  EXPECT_DOUBLE_EQ(rate(4), 1.5e-3);
  EXPECT_DOUBLE_EQ(rate(9), 3e-3);
  EXPECT_DOUBLE_EQ(rate(10), 3e-3);
  EXPECT_DOUBLE_EQ(rate(35), 3e-4 + 2.7e-3 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(rate(60), 3e-4 + 2.7e-3 / 2);
  EXPECT_DOUBLE_EQ(rate(110), 3e-4);
  EXPECT_DOUBLE_EQ(rate(1000), 3e-4);
}

TEST(WarmupCosine, RisesThenFalls) {
  const WarmupCosine rate{.peak = 1, .floor = 0.1, .warmup = 7, .steps = 50};
  for (int64_t step = 1; step < 60; ++step) {
    EXPECT_TRUE(step < 7 ? rate(step) > rate(step - 1) : rate(step) <= rate(step - 1)) << step;
  }
}

TEST(WarmupCosine, EdgesAreDefined) {
  EXPECT_DOUBLE_EQ((WarmupCosine{.peak = 2, .floor = 1, .warmup = 0, .steps = 10}(0)), 2);
  EXPECT_DOUBLE_EQ((WarmupCosine{.peak = 2, .floor = 1, .warmup = 10, .steps = 10}(9)), 2);
  EXPECT_DOUBLE_EQ((WarmupCosine{.peak = 2, .floor = 1, .warmup = 10, .steps = 10}(10)), 1);
  // A run shorter than its warm-up.
  EXPECT_DOUBLE_EQ((WarmupCosine{.peak = 2, .floor = 1, .warmup = 10, .steps = 3}(4)), 1);
}

TEST(WarmupStableDecay, HasItsClosedForm) {
  WarmupStableDecay rate{.peak = 2, .floor = 0.5, .warmup = 4, .decay = 16, .steps = 100};
  for (const auto& [step, want] : {std::pair(0, 0.5),
                                   {3, 2.0},
                                   {4, 2.0},
                                   {83, 2.0},
                                   {84, 2.0},
                                   {88, 1.625},
                                   {92, 1.25},
                                   {99, 0.59375},
                                   {100, 0.5},
                                   {1000, 0.5}}) {
    EXPECT_DOUBLE_EQ(rate(step), want) << step;
  }
  rate.fall = WarmupStableDecay::Fall::kRoot;
  for (const auto& [step, want] : {std::pair(3, 2.0), {84, 2.0}, {85, 1.625}, {88, 1.25}, {93, 0.875}, {100, 0.5}}) {
    EXPECT_DOUBLE_EQ(rate(step), want) << step;
  }
}

TEST(WarmupStableDecay, EdgesAreDefined) {
  EXPECT_DOUBLE_EQ((WarmupStableDecay{.peak = 2, .floor = 1, .steps = 10}(9)), 2);
  EXPECT_DOUBLE_EQ((WarmupStableDecay{.peak = 2, .floor = 1, .steps = 10}(10)), 1);
  // A fall that begins inside the rise, and one that began before the run.
  EXPECT_DOUBLE_EQ((WarmupStableDecay{.peak = 2, .floor = 0, .warmup = 6, .decay = 8, .steps = 10}(5)), 2);
  EXPECT_DOUBLE_EQ((WarmupStableDecay{.peak = 2, .floor = 0, .warmup = 6, .decay = 8, .steps = 10}(6)), 1);
  EXPECT_DOUBLE_EQ((WarmupStableDecay{.peak = 2, .floor = 0, .decay = 20, .steps = 10}(0)), 1);
}

}  // namespace
}  // namespace tessera::optim::schedule_test
