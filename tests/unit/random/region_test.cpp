// The runs of a region against its elements one by one.
#include <gtest/gtest.h>

#include "regions.h"

namespace tessera::random::region_test {

using namespace tessera::random::test;

namespace {

std::vector<ElementRun> runs_of(const Region& region) {
  std::vector<ElementRun> runs;
  for_each_run(region, [&](const ElementRun& run) { runs.push_back(run); });
  return runs;
}

TEST(Region, RunsAreTheElements) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 generator(seed);
    const Region region = random_cut(generator, random_whole(generator));
    const std::vector<Element> expected = elements_of(region);
    size_t at = 0;
    for (const ElementRun& run : runs_of(region)) {
      for (int64_t i = 0; i < run.count; ++i, ++at) {
        ASSERT_LT(at, expected.size()) << "seed " << seed;
        ASSERT_EQ(run.sample, expected[at].sample) << "seed " << seed << " at " << at;
        ASSERT_EQ(run.element + i, expected[at].element) << "seed " << seed << " at " << at;
      }
    }
    ASSERT_EQ(at, expected.size()) << "seed " << seed;
  }
}

TEST(Region, WholeTrailingDimsAreOneRun) {
  EXPECT_EQ(runs_of(whole_region({6, 5, 4})).size(), 1u);
  Region rows = whole_region({6, 5, 4});
  rows.held[0] = {{2, 5}};
  ASSERT_EQ(runs_of(rows).size(), 1u);
  EXPECT_EQ(runs_of(rows)[0].element, 40);
  EXPECT_EQ(runs_of(rows)[0].count, 60);
  rows.batch_dim = 0;
  EXPECT_EQ(runs_of(rows).size(), 3u);
}

TEST(Region, FlattenedBatchMayBeCutInsideASample) {
  Region region = whole_region({12, 2});  // 3 samples of 4 positions
  region.batch_dim = 0;
  region.batch_inner = 4;
  region.batch_offset = 10;
  region.held[0] = {{3, 9}};
  const std::vector<ElementRun> runs = runs_of(region);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].sample, 10);
  EXPECT_EQ(runs[0].element, 6);
  EXPECT_EQ(runs[0].count, 2);
  EXPECT_EQ(runs[1].sample, 11);
  EXPECT_EQ(runs[1].element, 0);
  EXPECT_EQ(runs[1].count, 8);
  EXPECT_EQ(runs[2].sample, 12);
  EXPECT_EQ(runs[2].count, 2);
}

TEST(Region, Contradictions) {
  Region region = whole_region({4, 4});
  region.held.pop_back();
  EXPECT_THROW(runs_of(region), c10::Error);
  region = whole_region({4, 4});
  region.held[1] = {{2, 5}};
  EXPECT_THROW(runs_of(region), c10::Error);
  region = whole_region({4, 4});
  region.batch_dim = 2;
  EXPECT_THROW(runs_of(region), c10::Error);
  region.batch_dim = 0;
  region.batch_extent = 3;
  EXPECT_THROW(runs_of(region), c10::Error);
  region.batch_extent = 4;
  region.batch_offset = int64_t{1} << 32;
  EXPECT_THROW(runs_of(region), c10::Error);
  EXPECT_THROW(runs_of(whole_region({int64_t{1} << 21, int64_t{1} << 20})), c10::Error);
  EXPECT_TRUE(runs_of(whole_region({4, 0})).empty());
}

}  // namespace

}  // namespace tessera::random::region_test
