// Which leaves a rank adds, of a sum over a dim and of one over samples.
#include <gtest/gtest.h>

#include "tessera/layout/cut.h"
#include "tessera/sums/node_plan.h"
#include "tessera/sums/sample_plan.h"

namespace tessera::sums::plans_test {
namespace {

using layout::Range;

TEST(NodePlan, RunsOfAllRanksAreTheDim) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t leaves = 1; leaves <= 9; ++leaves) {
      for (int64_t ranks = 1; ranks <= 5; ++ranks) {
        const layout::Cut cut(size, ranks, leaf_unit(size, leaves));
        const Node root = root_of(size, leaves);
        int64_t at = 0, leaf = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const NodePlan::Run& run : runs_of(cut[rank], size, leaves)) {
            EXPECT_EQ(cut[rank].begin + run.begin, at);
            EXPECT_EQ(run.node.begin, leaf);
            EXPECT_TRUE(is_node_of(run.node, root)) << run.node.str() << " of " << root.str();
            at += run.length, leaf = run.node.end;
          }
          EXPECT_EQ(at, std::max(at, cut[rank].end));
        }
        EXPECT_EQ(at, size);
        EXPECT_EQ(leaf, root.end);
      }
    }
  }
}

TEST(NodePlan, MembersMergeIntoTheRoot) {
  const MergePlan plan = plan_merge({{0, 3}, {}, {3, 6}, {6, 8}}, {0, 8});
  EXPECT_EQ(plan.str(), "[0,8) of [0,2) [2,3) | - | [3,4) [4,6) | [6,8)");
  EXPECT_EQ(plan.closed(), (std::vector<Node>{{0, 8}}));
}

TEST(SamplePlan, TokensAreCutIntoLeaves) {
  const TokenLeaves leaves = TokenLeaves::of(13, 10, {.batch = 4, .sequence = 3});
  EXPECT_EQ(leaves.sample_leaf, 4);
  EXPECT_EQ(leaves.sequence_leaves, 3);
  EXPECT_EQ(leaves.root, (Node{0, 4 * 3}));
  EXPECT_EQ(leaves.samples_of(0), (Range{0, 4}));
  EXPECT_EQ(leaves.samples_of(3), (Range{12, 13}));                                  // the last one is short
  EXPECT_EQ(TokenLeaves::of(2, 1, {.batch = 8, .sequence = 8}).root, (Node{0, 2}));  // no leaf without a token
}

TEST(SamplePlan, PiecesLieInOneLeafEach) {
  using Pieces = std::vector<SamplePlan::Piece>;
  EXPECT_EQ(pieces_of({0, 10}, 10, 3), (Pieces{{0, 0, 4}, {1, 4, 4}, {2, 8, 2}}));
  EXPECT_EQ(pieces_of({4, 10}, 10, 3), (Pieces{{1, 0, 4}, {2, 4, 2}}));
  EXPECT_EQ(pieces_of({10, 10}, 10, 3), Pieces());
}

}  // namespace
}  // namespace tessera::sums::plans_test
