#include "tessera/layout/placement.h"

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera::layout::placement_test {
namespace {

// torch.chunk: pieces of ceil(size / parts), then what is left.
std::vector<std::vector<int64_t>> chunk(const std::vector<int64_t>& items, int64_t parts) {
  const int64_t size = static_cast<int64_t>(items.size());
  const int64_t piece = std::max<int64_t>((size + parts - 1) / parts, 1);
  std::vector<std::vector<int64_t>> result(parts);
  for (int64_t i = 0; i < size; ++i) {
    result[i / piece].push_back(items[i]);
  }
  return result;
}

TEST(Cut, IsTorchChunkOfUnits) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      for (int64_t unit = 1; unit <= 11; ++unit) {
        std::vector<int64_t> units;
        for (int64_t u = 0; u * unit < size; ++u) {
          units.push_back(u);
        }
        const auto pieces = chunk(units, parts);
        int64_t begin = 0;
        for (int64_t i = 0; i < parts; ++i) {
          const int64_t end = pieces[i].empty() ? begin : std::min(size, (pieces[i].back() + 1) * unit);
          EXPECT_EQ(Cut(size, parts, unit)[i], (Range{begin, end})) << size << " " << parts << " " << i << " " << unit;
          begin = end;
        }
        EXPECT_EQ(begin, size);
      }
    }
  }
}

TEST(Cut, EmptyPartsStandAtTheEnd) {
  EXPECT_EQ(cut(2, 4, 3), (Range{2, 2}));
  EXPECT_EQ(cut(8, 3, 2), (Range{6, 8}));
  EXPECT_EQ(Cut(8 * 64, 3, 64)[0], (Range{0, 3 * 64}));
  EXPECT_EQ(Cut(8 * 64, 3, 64)[2], (Range{6 * 64, 8 * 64}));
}

TEST(Placement, IsTwentyFourBytesAndRefusesNonsense) {
  EXPECT_EQ(sizeof(Placement), 24u);
  EXPECT_THROW(Shard(-1), c10::Error);
  EXPECT_THROW(Shard(0, {.unit = 0}), c10::Error);
  EXPECT_THROW(Shard(0, {.order = 200}), c10::Error);
  EXPECT_TRUE(Shard(3).is_shard(3));
  EXPECT_FALSE(Shard(3).is_shard(2));
  EXPECT_NE(Partial(), Partial(ReduceOp::kMax));
}

}  // namespace
}  // namespace tessera::layout::placement_test
