// The merge of exact sums: whoever holds which leaves, the bits are those of the tree added on one rank.
#include <numeric>
#include <random>

#include <ATen/ops/add.h>

#include "tessera/comm/exact_merge.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm {
namespace {

using layout::Node;

// Leaves of widely mixed magnitude, so that another order of additions gives other bits.
std::vector<at::Tensor> leaves_of(int64_t count, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor exponents = values_of(2 * static_cast<uint64_t>(i) + 1, {numel}, at::kDouble).mul(5).floor();
    leaves.push_back((values_of(2 * static_cast<uint64_t>(i), {numel}, at::kDouble) * exponents.exp2()).to(dtype));
  }
  return leaves;
}

// The definition.
at::Tensor tree(const std::vector<at::Tensor>& leaves, const Node& node) {
  if (node.size() == 1) return leaves[node.begin];
  const int64_t middle = node.begin + layout::left_size(node.size());
  return tree(leaves, {node.begin, middle}) + tree(leaves, {middle, node.end});
}

// Every way to give `leaves` leaves to `members` members in order, some perhaps to none: the ends of their runs.
void each_partition(int64_t leaves, int64_t members, const std::function<void(const std::vector<Node>&)>& body) {
  std::vector<Node> parts(members);
  const std::function<void(int64_t, int64_t)> choose = [&](int64_t member, int64_t begin) {
    if (member == members - 1) {
      parts[member] = {begin, leaves};
      return body(parts);
    }
    for (int64_t end = begin; end <= leaves; ++end) {
      parts[member] = {begin, end};
      choose(member + 1, end);
    }
  };
  choose(0, 0);
}

// The sums over a member's nodes, as it would compute them alone.
std::vector<NodeSum> sums_of(const std::vector<at::Tensor>& leaves, const std::vector<Node>& nodes) {
  std::vector<NodeSum> sums;
  for (const Node& node : nodes) sums.push_back({node, tree(leaves, node)});
  return sums;
}

// Merges the nodes that each member holds, on this member; empty if the bits are those of the tree.
std::string difference(const std::vector<at::Tensor>& leaves, const std::vector<std::vector<Node>>& nodes, const at::Tensor& expected) {
  const Node root{0, static_cast<int64_t>(leaves.size())};
  const auto merged = merge_nodes(world(), sums_of(leaves, nodes[world().rank()]), nodes, root, leaves[0]);
  if (merged.size() != 1 || !(merged[0].node == root)) return c10::str(merged.size(), " nodes are left");
  return identical(merged[0].sum, expected) ? "" : "other bits";
}

std::string described(const std::vector<Node>& parts) {
  std::string text;
  for (const Node& part : parts) text += part.str();
  return text;
}

// One of `every` partitions of all numbers of leaves.
int64_t check_partitions(int64_t members, int64_t numel, at::ScalarType dtype, int64_t every) {
  int64_t checked = 0;
  run_ranks(members, [&](int64_t rank) {
    for (int64_t count = 1; count <= 16; ++count) {
      const auto leaves = leaves_of(count, numel, dtype);
      const at::Tensor expected = tree(leaves, {0, count});
      int64_t index = 0;
      each_partition(count, members, [&](const std::vector<Node>& parts) {
        if (index++ % every != 0) return;
        std::vector<std::vector<Node>> nodes;
        for (const Node& part : parts) nodes.push_back(layout::cover(part, count));
        EXPECT_EQ(difference(leaves, nodes, expected), "") << count << " leaves, cuts " << described(parts);
        checked += rank == 0;
      });
    }
  }, within(60000));
  return checked;
}

TEST(ExactMerge, EveryPartitionOfUpTo16LeavesOverUpTo5Members) {
  const std::vector<int64_t> partitions = {16, 152, 968, 4844, 20348};
  for (int64_t members = 1; members <= 5; ++members) EXPECT_EQ(check_partitions(members, 3, at::kFloat, 1), partitions[members - 1]);
}

// Above 64 KiB each member finishes a shard; the last shards are short.
TEST(ExactMerge, LargeTensors) {
  for (int64_t members = 1; members <= 5; ++members) {
    EXPECT_GT(check_partitions(members, 8193, at::kDouble, members < 3 ? 7 : 20 * members * members), 10);
  }
}

TEST(ExactMerge, AtTheLimitOfSmallTensors) {
  for (int64_t numel : {0, 1, 16383, 16384, 16385}) EXPECT_GT(check_partitions(3, numel, at::kFloat, 60), 10) << numel;
}

// Zigzag positions and micro-batches: the nodes of a member need not be neighbours.
TEST(ExactMerge, LeavesDealtOutAtRandom) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(4, [&](int64_t) {
    std::mt19937_64 engine(seed);
    for (int64_t round = 0; round < 300; ++round) {
      const int64_t count = 1 + static_cast<int64_t>(engine() % 16);
      std::vector<std::vector<Node>> nodes(4);
      for (int64_t leaf = 0; leaf < count; ++leaf) nodes[engine() % 4].push_back({leaf, leaf + 1});
      const auto leaves = leaves_of(count, round % 10 == 0 ? 9001 : 5, at::kDouble);
      EXPECT_EQ(difference(leaves, nodes, tree(leaves, {0, count})), "") << "round " << round;
    }
  }, within(60000));
}

// One axis after the other, the fastest first, as a mesh of 2 x 2 merges.
TEST(ExactMerge, TwoAxes) {
  run_ranks(4, [&](int64_t rank) {
    RankContext& ctx = RankContext::require();
    const auto mesh = layout::Mesh::parse("a=2,b=2");
    for (int64_t count = 4; count <= 16; ++count) {
      const auto leaves = leaves_of(count, 6, at::kFloat);
      const Node root{0, count};
      const int64_t each = (count + 3) / 4;
      const auto part = [&](int64_t index) { return Node{std::min(count, index * each), std::min(count, (index + 1) * each)}; };
      const int64_t line = rank / 2 * 2;
      std::vector<std::vector<Node>> nodes = {layout::cover(part(line), count), layout::cover(part(line + 1), count)};
      auto mine = merge_nodes(ctx.axis(mesh, 1), sums_of(leaves, nodes[rank % 2]), nodes, root, leaves[0]);
      nodes.clear();
      for (int64_t i = 0; i < 2; ++i) nodes.push_back(layout::cover({part(2 * i).begin, part(2 * i + 1).end}, count));
      ASSERT_EQ(mine.size(), nodes[rank / 2].size());
      mine = merge_nodes(ctx.axis(mesh, 0), mine, nodes, root, leaves[0]);
      ASSERT_EQ(mine.size(), 1u);
      EXPECT_TRUE(identical(mine[0].sum, tree(leaves, root))) << count;
    }
  }, within(60000));
}

// A step whose other samples are still to come: the nodes stay open, and the inputs keep their values.
TEST(ExactMerge, MissingLeavesStayOpen) {
  const auto leaves = leaves_of(8, 4, at::kDouble);
  std::vector<at::Tensor> before;
  for (const at::Tensor& leaf : leaves) before.push_back(leaf.clone());
  run_ranks(2, [&](int64_t rank) {
    const std::vector<std::vector<Node>> nodes = {{{0, 2}, {5, 6}}, {{2, 4}, {7, 8}}};
    const auto merged = merge_nodes(world(), sums_of(leaves, nodes[rank]), nodes, {0, 8}, leaves[0]);
    ASSERT_EQ(merged.size(), 3u);
    EXPECT_EQ(merged[0].node, (Node{0, 4}));
    EXPECT_EQ(merged[1].node, (Node{5, 6}));
    EXPECT_EQ(merged[2].node, (Node{7, 8}));
    EXPECT_TRUE(identical(merged[0].sum, tree(leaves, {0, 4})));
  }, within(20000));
  for (size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(identical(leaves[i], before[i]));
}

TEST(ExactMerge, NobodyHasAnything) {
  run_ranks(2, [&](int64_t) {
    const at::Tensor like = at::zeros({3}, at::kDouble);
    EXPECT_TRUE(merge_nodes(world(), {}, {{}, {}}, {0, 4}, like).empty());
  }, within(20000));
}

// The control: a plain sum in rank order has other bits, so the values above tell orders apart.
TEST(ExactMerge, OtherOrdersHaveOtherBits) {
  const auto leaves = leaves_of(16, 64, at::kFloat);
  at::Tensor chain = leaves[0];
  for (size_t i = 1; i < leaves.size(); ++i) chain = chain + leaves[i];
  EXPECT_GT(chain.ne(tree(leaves, {0, 16})).sum().item<int64_t>(), 16);
}

TEST(ExactMerge, OverlappingNodesAreOurMistake) {
  const auto leaves = leaves_of(4, 2, at::kDouble);
  EXPECT_TRUE(contains(message_from<c10::Error>([&] { close_nodes(sums_of(leaves, {{0, 2}, {1, 2}}), {0, 4}); }), "overlap"));
}

}  // namespace
}  // namespace tessera::comm
