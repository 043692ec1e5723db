#include "tessera/plan/rows.h"

#include <gtest/gtest.h>

#include "tessera/layout/spec.h"

namespace tessera::plan::rows_test {
namespace {

struct Case {
  const char* mesh;
  std::vector<std::string> batch_axes;
  int64_t samples, micro_batches, unit = 1;
};

const Case kCases[] = {
    {"dp=1", {"dp"}, 5, 1},
    {"dp=4", {"dp"}, 8, 1},
    {"dp=4", {"dp"}, 9, 2},
    {"dp=4,tp=2", {"dp"}, 7, 3},
    {"dp=8", {"dp"}, 5, 2},
    {"pod=2,dp=3,tp=2", {"pod", "dp"}, 17, 2},
    {"dp=3,pod=2", {"pod", "dp"}, 11, 4},
    {"dp=2,tp=2", {}, 6, 3},
    {"dp=3", {"dp"}, 13, 3, 2},
    {"pod=2,dp=2", {"pod", "dp"}, 10, 1},
    {"pod=2,dp=2", {"pod", "dp"}, 29, 5, 4},
    {"dp=2", {"dp"}, 16, 16, 2},
};

// The coordinates on the batch axes, slowest first, the others at 0.
std::vector<layout::Coord> blocks_of(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes) {
  std::vector<layout::Coord> blocks = {layout::Coord(mesh.ndim(), 0)};
  for (const std::string& name : batch_axes) {
    std::vector<layout::Coord> next;
    for (layout::Coord block : blocks) {
      for (int64_t i = 0; i < mesh.axis(mesh.axis_index(name)).size; ++i) {
        block[mesh.axis_index(name)] = i;
        next.push_back(block);
      }
    }
    blocks = next;
  }
  return blocks;
}

TEST(Rows, FollowEachOtherBlockByBlock) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.mesh) + " " + std::to_string(c.samples) + "/" + std::to_string(c.micro_batches));
    const auto mesh = layout::Mesh::parse(c.mesh);
    const Rows rows(mesh, c.batch_axes, c.samples, c.micro_batches, c.unit);
    int64_t next = 0;
    for (const layout::Coord& block : blocks_of(mesh, c.batch_axes)) {
      for (int64_t k = 0; k < c.micro_batches; ++k) {
        const layout::Range held = rows.samples_of(block, k);
        EXPECT_EQ(held.begin, next);
        EXPECT_TRUE(held.begin % c.unit == 0 || k > 0 || held.begin == c.samples) << "a block begins inside a unit";
        EXPECT_EQ(held.size(), layout::local_range(mesh, rows.placements(k), 0, rows.size_of(k), block).size());
        next = held.end;
      }
    }
    EXPECT_EQ(next, c.samples);
  }
}

TEST(Rows, OfPassesFollowEachOtherRankByRank) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.mesh) + " " + std::to_string(c.samples) + "/" + std::to_string(c.micro_batches));
    const auto mesh = layout::Mesh::parse(c.mesh);
    const Rows rows(mesh, c.batch_axes, c.samples, c.micro_batches, c.unit, Deal::kByPass);
    int64_t next = 0;
    for (int64_t k = 0; k < c.micro_batches; ++k) {
      const int64_t begin = next;
      for (const layout::Coord& block : blocks_of(mesh, c.batch_axes)) {
        const layout::Range held = rows.samples_of(block, k);
        EXPECT_EQ(held.begin, next);
        EXPECT_TRUE(held.begin % c.unit == 0 || held.begin == c.samples) << "a part begins inside a unit";
        next = held.end;
      }
      EXPECT_EQ(next - begin, rows.size_of(k));
    }
    EXPECT_EQ(next, c.samples);
  }
}

TEST(Rows, SayWhetherEveryRankHasSomeOfEachMicroBatch) {
  const auto fills = [](const char* mesh, int64_t samples, int64_t micro_batches, int64_t unit, Deal deal) {
    return Rows(layout::Mesh::parse(mesh), {"dp"}, samples, micro_batches, unit, deal).fills_ranks();
  };
  EXPECT_TRUE(fills("dp=2", 8, 4, 1, Deal::kByPass));
  EXPECT_TRUE(fills("dp=2", 8, 4, 1, Deal::kByBlock));
  EXPECT_FALSE(fills("dp=2", 8, 4, 2, Deal::kByPass));  // a unit a pass
  EXPECT_TRUE(fills("dp=2", 8, 4, 2, Deal::kByBlock));
  EXPECT_FALSE(fills("dp=3", 16, 4, 1, Deal::kByPass));  // 2, 2 and none
  EXPECT_TRUE(fills("dp=3,tp=2", 18, 4, 1, Deal::kByPass));
  EXPECT_FALSE(fills("dp=3", 4, 1, 1, Deal::kByBlock));
}

void expect_samples_of_origin(Rows rows, const layout::Mesh& mesh, const std::vector<std::string>& batch_axes) {
  for (int64_t k = 0; k < rows.micro_batches(); ++k) {
    const auto& pieces = rows.origin(k)->pieces;
    for (const layout::Coord& block : blocks_of(mesh, batch_axes)) {
      const layout::Range held = layout::local_range(mesh, rows.placements(k), 0, rows.size_of(k), block);
      for (int64_t row = held.begin; row < held.end; ++row) {
        const auto after =
            std::find_if(pieces.begin(), pieces.end(), [&](const auto& piece) { return piece.row > row; });
        ASSERT_NE(after, pieces.begin());
        EXPECT_EQ(row - (after - 1)->row + (after - 1)->sample, rows.samples_of(block, k).begin + row - held.begin);
      }
    }
  }
}

TEST(Rows, TheOriginSaysTheSampleOfEveryRow) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.mesh) + " " + std::to_string(c.samples) + "/" + std::to_string(c.micro_batches));
    const auto mesh = layout::Mesh::parse(c.mesh);
    for (const Deal deal : {Deal::kByBlock, Deal::kByPass}) {
      expect_samples_of_origin(Rows(mesh, c.batch_axes, c.samples, c.micro_batches, c.unit, deal), mesh, c.batch_axes);
    }
  }
}

TEST(Rows, OneMicroBatchIsTheStepItself) {
  Rows rows(layout::Mesh::parse("dp=64,tp=2"), {"dp"}, 100, 1);
  ASSERT_EQ(rows.origin(0)->pieces.size(), 1u);
  EXPECT_EQ(rows.origin(0), rows.origin(0));
}

}  // namespace
}  // namespace tessera::plan::rows_test
