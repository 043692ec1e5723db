// Sums over samples that ranks of two axes have parts of: merged over both at once, or over one after the other.
#include "tessera/dtensor/plan/merge_stages.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/dtensor/exact/rank_merge.h"
#include "tessera/dtensor/state/state.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::merge_stages_test {
namespace {

using dtensor::MergeStages;

constexpr int64_t kRows = 12, kColumns = 8;
constexpr int64_t kBytes = kRows * kColumns * 4;

// The sum of leaf `leaf`; addends whose order shows.
at::Tensor sum_of_leaf(int64_t leaf) {
  return at::arange(kRows * kColumns, at::kFloat)
      .add(1)
      .mul(leaf == 1 ? 1e8f : 0.7f)
      .sin()
      .mul(leaf == 1 ? 1e4f : 1)
      .view({kRows, kColumns});
}

// Where a sum over the leaves of all ranks goes, and how.
struct Merged {
  MergeStages stages;
  at::Tensor value;
  int64_t calls = 0, bytes = 0;  // of all ranks
};

Merged merged(const char* mesh_text, const char* to_text, std::optional<MergeStages> stages = std::nullopt) {
  const Mesh mesh = Mesh::parse(mesh_text);
  Merged result;
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.size()));
  run_on(mesh, [&](int64_t rank) {
    auto& state = dtensor::RankState::require();
    const std::vector<int64_t> sizes = {kRows, kColumns};
    const auto whole = layout::Spec::contiguous(mesh, layout::Placements(2), sizes, at::kFloat);
    const auto to = whole.with(layout::parse_placements(mesh, to_text));
    const sums::Node root{0, mesh.size()};
    const std::vector<int64_t> axes = {1, 0};  // fastest first
    const dtensor::ScatteringMove way(state.ctx, state.engine.moves, whole, to, axes);
    dtensor::RankMerge merge{.way = way,
                             .stages = stages ? *stages : dtensor::merge_stages(way, axes, root, kBytes),
                             .root = root,
                             .mine = {{{rank, rank + 1}, sum_of_leaf(rank)}},
                             .sizes = sizes,
                             .options = at::TensorOptions(at::kFloat)};
    dtensor::merge_over_ranks(state, {&merge}, {}, "test");
    ASSERT_EQ(merge.mine.size(), 1u);
    const auto rest = merge.way.rest();
    const at::Tensor own = rest ? run_move(state.ctx, *rest, merge.mine[0].sum, "test") : merge.mine[0].sum;
    const at::Tensor all = full_tensor(dtensor::wrap(own, to));
    for (const trace::LedgerEntry& entry : state.ctx.ledger.entries()) {
      if (entry.collective == "exact_merge") {
        bytes[static_cast<size_t>(rank)] += entry.bytes;
        result.calls += rank == 0 ? entry.calls : 0;
      }
    }
    if (rank == 0) {
      result.stages = merge.stages, result.value = all;
    }
  });
  for (const int64_t each : bytes) {
    result.bytes += each;
  }
  return result;
}

// T (N-1) in all for what is scattered, 2 T (N-1) for what all get.
TEST(MergeStages, AreOneWhereThatSendsNoMore) {
  for (const auto& [mesh, ranks] : {std::pair("a=2,b=2", 4), {"a=2,b=3", 6}}) {
    const Merged whole = merged(mesh, "{}"), cut = merged(mesh, "{a: S(0@1), b: S(0@0)}");
    EXPECT_EQ(whole.stages, (MergeStages{{0, 1}}));
    EXPECT_EQ(whole.bytes, 2 * kBytes * (ranks - 1)) << mesh;
    EXPECT_EQ(cut.stages, (MergeStages{{0, 1}}));
    EXPECT_EQ(cut.bytes, kBytes * (ranks - 1)) << mesh;
    EXPECT_EQ(whole.calls + cut.calls, 2);
  }
  // Over one after the other more is sent, to all; into parts as much, by two merges.
  const MergeStages apart = {{1}, {0}};
  EXPECT_EQ(merged("a=2,b=2", "{}", apart).bytes, 2 * kBytes * 4);
  EXPECT_EQ(merged("a=2,b=2", "{a: S(0@1), b: S(0@0)}", apart).bytes, kBytes * 3);
}

// Hybrid sharding: T (B-1)/B into parts, then 2 T/B (A-1)/A; at once each rank would send its part to all that have
// others, and to those that have the same.
TEST(MergeStages, AreTwoWhereTheFirstOneScattersAlone) {
  const Merged apart = merged("a=2,b=2", "{b: S(0)}"), at_once = merged("a=2,b=2", "{b: S(0)}", MergeStages{{0, 1}});
  EXPECT_EQ(apart.stages, (MergeStages{{1}, {0}}));
  EXPECT_EQ(apart.bytes, kBytes * 2 + kBytes * 2);
  EXPECT_EQ(at_once.bytes, kBytes * 6);
}

TEST(MergeStages, ChangeNoBit) {
  at::Tensor tree = (sum_of_leaf(0) + sum_of_leaf(1)) + (sum_of_leaf(2) + sum_of_leaf(3));
  at::Tensor in_turn = ((sum_of_leaf(0) + sum_of_leaf(1)) + sum_of_leaf(2)) + sum_of_leaf(3);
  EXPECT_FALSE(at::equal(tree, in_turn)) << "the order does not show";
  for (const char* to : {"{}", "{b: S(0)}", "{a: S(0)}", "{a: S(0@1), b: S(0@0)}", "{a: S(1), b: S(0)}"}) {
    for (const MergeStages& stages : {MergeStages{{0, 1}}, MergeStages{{1}, {0}}}) {
      EXPECT_TRUE(at::equal(merged("a=2,b=2", to, stages).value, tree)) << to << ", " << stages.size();
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::merge_stages_test
