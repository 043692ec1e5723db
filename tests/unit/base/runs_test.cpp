#include "tessera/base/runs.h"

#include <algorithm>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::base::runs_test {
namespace {

// A sequence drawn as runs of patterns of runs; `depth` 0: numbers at equal distances.
std::vector<int64_t> drawn(std::mt19937_64& random, int depth) {
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  std::vector<int64_t> values;
  for (int64_t run = below(3); run >= 0; --run) {
    const auto pattern = depth == 0 ? std::vector<int64_t>{0} : drawn(random, depth - 1);
    const int64_t first = below(50), step = below(8) - 2;
    for (int64_t copies = below(7), i = 0; i < copies; ++i) {
      for (const auto value : pattern) {
        values.push_back(first + i * step + value);
      }
    }
  }
  return values;
}

void expect_sequence(const Runs& runs, const std::vector<int64_t>& values) {
  ASSERT_EQ(runs.size(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(runs.at(static_cast<int64_t>(i)), values[i]) << i;
  }
  EXPECT_EQ(runs.ascends(), std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end());
  if (!values.empty()) {
    EXPECT_EQ(runs.least(), *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(runs.greatest(), *std::max_element(values.begin(), values.end()));
  }
}

void expect_places(const Runs& ascending, const std::vector<int64_t>& values) {
  ASSERT_TRUE(ascending.ascends());
  for (int64_t wanted = values.front() - 3; wanted < values.back() + 3; ++wanted) {
    const auto behind = std::upper_bound(values.begin(), values.end(), wanted);
    ASSERT_EQ(ascending.last_at_most(wanted), behind - values.begin() - 1) << wanted;
  }
}

TEST(Runs, AreTheSequenceThatTheyWereMadeOf) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int sample = 0; sample < 1000; ++sample) {
    auto values = drawn(random, sample % 4);
    const Runs runs(values);
    expect_sequence(runs, values);
    const auto flat = runs.flat();
    EXPECT_LE(flat.size(), 3 * values.size());
    const auto read = Runs::from_flat(flat);
    EXPECT_EQ(read, runs);
    expect_sequence(read, values);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (!values.empty()) {
      expect_places(Runs(values), values);
    }
  }
}

TEST(Runs, AreWrittenAsTheyAreRead) {
  EXPECT_EQ(Runs({0, 4, 8, 12, 7, 7}).flat(), (std::vector<int64_t>{0, 4, 4, 7, 0, 2}));
  EXPECT_EQ(Runs({0, 5, 5, 9, 14, 14, 18, 23, 23}).flat(), (std::vector<int64_t>{0, 9, -3, 2, 0, 5, 2, 5, 0, 1}));
  EXPECT_EQ(Runs().flat(), std::vector<int64_t>{});
  EXPECT_EQ(Runs().size(), 0);
  EXPECT_TRUE(Runs().ascends());
  EXPECT_THROW(Runs().least(), c10::Error);
  EXPECT_THROW(Runs({1, 2}).at(2), c10::Error);
}

// What stands at the places of slices on large meshes: who alone has small tensors, who is shorter than the others,
// whose turn it is.
TEST(Runs, OfPatternsInPatternsTakeAFewNumbers) {
  const auto expect_short = [](const std::vector<int64_t>& values, size_t most) {
    const Runs runs(values);
    expect_sequence(runs, values);
    EXPECT_LE(runs.flat().size(), most);
  };
  std::vector<int64_t> every_eighth, three_deep, in_turn, short_end;
  for (int64_t rank = 0; rank < 8192; ++rank) {
    every_eighth.push_back(rank % 8 == 0 ? 5000 : 100);
    three_deep.push_back(rank % 8 * 3 + rank / 8 % 16 * 40 + rank / 128 * 1000 + (rank % 128 == 127 ? 7 : 0));
    in_turn.push_back((rank + 5) % 64 * 128 + rank / 64);
    short_end.push_back(rank == 8191 ? 70 : rank % 8 < 7 ? 90 : 80);
  }
  expect_short(every_eighth, 10);
  expect_short(in_turn, 30);
  expect_short(short_end, 40);
  expect_short(three_deep, 40);
  std::vector<int64_t> mesh;  // four axes in another order
  for (int64_t i = 0; i < 8192; ++i) {
    mesh.push_back(i % 4 * 2048 + i / 4 % 8 + i / 32 % 16 * 128 + i / 512 * 8);
  }
  expect_short(mesh, 24);
}

TEST(Runs, ThatAreNoneAreRefused) {
  const int64_t large = int64_t{1} << 62;
  const std::vector<std::vector<int64_t>> faults = {
      {1, 2},                              // cut short
      {1, 2, 0},                           // no number
      {1, large, 5},                       // more than 64 bits
      {0, 0, INT64_MAX, 0, 0, INT64_MAX},  // of numbers
      {0, 9, -3},                          // a pattern that is not there
      {0, 9, -3, 0},                       // an empty one
      {0, 9, -3, 2, 0, 5, 2},              // one cut short
      {0, 9, -3, 1, 1, 5, 2},              // one that does not begin with 0
      {0, 9, -3, -1, 0, 5, 2},             // one of fewer than no runs
      {0, 9, INT64_MIN, 1, 0, 5, 2},       // as many copies as cannot be
      {0, 0, -large, 1, 0, 0, 4},          // more numbers than 64 bits count
      {0, large / 2, -2, 1, 0, large, 2},  // accepted: see below
  };
  for (size_t i = 0; i + 1 < faults.size(); ++i) {
    EXPECT_THROW(Runs::from_flat(faults[i]), c10::Error) << i;
  }
  EXPECT_EQ(Runs::from_flat(faults.back()).greatest(), large + large / 2);
  std::vector<int64_t> deep;
  for (int level = 0; level < 100'000; ++level) {
    deep.insert(deep.end(), {0, 1, -1, 1});
  }
  EXPECT_THROW(Runs::from_flat(deep), c10::Error);
}

}  // namespace
}  // namespace tessera::base::runs_test
