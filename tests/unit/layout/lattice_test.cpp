#include "tessera/layout/lattice.h"

#include <algorithm>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

// The definition of the tree, written on its own: split at the largest power of two below the size.
std::string expression(int64_t begin, int64_t end) {
  if (end - begin == 1) {
    return std::to_string(begin);
  }
  int64_t half = 1;
  while (2 * half < end - begin) {
    half *= 2;
  }
  return "(" + expression(begin, begin + half) + "+" + expression(begin + half, end) + ")";
}

void collect_nodes(int64_t begin, int64_t end, std::vector<Node>& nodes) {
  nodes.push_back({begin, end});
  if (end - begin > 1) {
    int64_t half = 1;
    while (2 * half < end - begin) {
      half *= 2;
    }
    collect_nodes(begin, begin + half, nodes);
    collect_nodes(begin + half, end, nodes);
  }
}

std::vector<Node> all_nodes(int64_t leaves) {
  std::vector<Node> nodes;
  collect_nodes(0, leaves, nodes);
  return nodes;
}

// What `plan` makes of the parts when each is written as its own expression: the text in the root's place.
std::string merged(const std::vector<Node>& parts, const Node& root, const std::vector<Addition>& plan) {
  std::vector<std::string> texts;
  for (const Node& part : parts) {
    texts.push_back(expression(part.begin, part.end));
  }
  for (const Addition& addition : plan) {
    EXPECT_NE(texts[addition.left], "used") << addition.node.str();
    texts[addition.left] = "(" + texts[addition.left] + "+" + std::exchange(texts[addition.right], "used") + ")";
    EXPECT_EQ(texts[addition.left], expression(addition.node.begin, addition.node.end));
  }
  EXPECT_EQ(plan.size() + 1, parts.size());
  const auto first = std::find_if(parts.begin(), parts.end(), [&](const Node& part) { return part.begin == root.begin; });
  return texts[first - parts.begin()];
}

std::string message_of_call(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return base::message_of(error);
  }
  return "no error";
}

TEST(Lattice, PrintsAndParses) {
  EXPECT_EQ(Lattice().str(), "batch=8,sequence=1,feature=8");
  for (const Lattice& lattice : {Lattice{}, Lattice{16, 4, 3}, Lattice{.sequence = 2}, Lattice{1, 1, 1}}) {
    EXPECT_EQ(Lattice::parse(lattice.str()), lattice);
  }
  EXPECT_EQ(Lattice::parse("feature = 4, batch = 2"), (Lattice{2, 1, 4}));
  for (const char* text : {"", "batch", "batch=0", "batch=-1", "batch=8,batch=8", "heads=8", "batch=8;feature=8", "batch=8=8", "batch=x", "batch=8,"}) {
    EXPECT_THROW(Lattice::parse(text), ConfigError) << text;
  }
}

TEST(Lattice, LeavesCoverTheDimAndUnitsCutBetweenThem) {
  for (int64_t size = 0; size <= 70; ++size) {
    for (int64_t leaves = 1; leaves <= 20; ++leaves) {
      int64_t at = 0;
      for (int64_t i = 0; i < leaves; ++i) {
        const Range leaf = leaf_range(size, leaves, i);
        EXPECT_EQ(leaf.begin, at);
        EXPECT_LE(leaf.size(), leaf_length(size, leaves));
        EXPECT_TRUE(leaf.size() == leaf_length(size, leaves) || leaf.end == size);
        at = leaf.end;
      }
      EXPECT_EQ(at, size);
      for (int64_t ranks = 1; ranks <= 9; ++ranks) {
        std::vector<int64_t> parts;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          parts.push_back(cut(size, ranks, rank, leaf_unit(size, leaves)).size());
        }
        EXPECT_NO_THROW(verify_cuts(0, size, leaves, parts));
      }
    }
  }
  EXPECT_EQ(leaf_length(11008, 8), 1376);
  EXPECT_THROW(leaf_length(5, 0), c10::Error);
}

TEST(Lattice, SplitsAtTheLargestPowerOfTwoBelowTheSize) {
  for (int64_t size = 2; size <= 300; ++size) {
    const int64_t left = left_size(size);
    EXPECT_TRUE((left & (left - 1)) == 0 && left < size && 2 * left >= size) << size;
  }
  EXPECT_THROW(left_size(1), c10::Error);
}

TEST(Lattice, CountsInBinary) {
  for (int64_t size = 1; size <= 70; ++size) {
    std::vector<std::string> waiting;
    for (int64_t i = 0; i < size; ++i) {
      std::string sum = std::to_string(i);
      for (int64_t closes = closes_after(i, size); closes > 0; --closes) {
        sum = "(" + waiting.back() + "+" + sum + ")";
        waiting.pop_back();
      }
      waiting.push_back(sum);
    }
    ASSERT_EQ(waiting, std::vector<std::string>{expression(0, size)});
  }
}

TEST(Lattice, KnowsTheNodesOfEveryTree) {
  for (int64_t leaves = 1; leaves <= 24; ++leaves) {
    const auto nodes = all_nodes(leaves);
    for (int64_t begin = 0; begin < leaves; ++begin) {
      for (int64_t end = begin; end <= leaves + 1; ++end) {
        const bool expected = std::find(nodes.begin(), nodes.end(), Node{begin, end}) != nodes.end();
        EXPECT_EQ(is_node_of({begin, end}, {0, leaves}), expected) << leaves << " " << begin << " " << end;
      }
    }
  }
}

TEST(Lattice, CoversWithTheFewestNodes) {
  for (int64_t leaves = 1; leaves <= 24; ++leaves) {
    const auto nodes = all_nodes(leaves);
    for (int64_t begin = 0; begin <= leaves; ++begin) {
      std::vector<int64_t> fewest(leaves + 1, 1000);  // nodes needed for [begin, end), by end
      fewest[begin] = 0;
      for (int64_t end = begin + 1; end <= leaves; ++end) {
        for (const Node& node : nodes) {
          if (node.end == end && node.begin >= begin) {
            fewest[end] = std::min(fewest[end], fewest[node.begin] + 1);
          }
        }
        const auto found = cover({begin, end}, leaves);
        EXPECT_EQ(static_cast<int64_t>(found.size()), fewest[end]);
        int64_t at = begin;
        for (const Node& node : found) {
          EXPECT_EQ(node.begin, at);
          EXPECT_TRUE(std::find(nodes.begin(), nodes.end(), node) != nodes.end());
          at = node.end;
        }
        EXPECT_EQ(at, end);
      }
      EXPECT_TRUE(cover({begin, begin}, leaves).empty());
    }
  }
  EXPECT_THROW(cover({0, 9}, 8), c10::Error);
}

// The nodes of all ranks when `cuts` (ascending leaf numbers) lie between them.
std::vector<Node> nodes_of_ranks(const std::vector<int64_t>& cuts, int64_t leaves) {
  std::vector<Node> parts;
  int64_t at = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const int64_t end = i < cuts.size() ? cuts[i] : leaves;
    for (const Node& node : cover({at, end}, leaves)) {
      parts.push_back(node);
    }
    at = end;
  }
  return parts;
}

TEST(Lattice, EveryWayToCutMergesToTheTreeOfOneRank) {
  std::mt19937 engine(17);
  for (int64_t leaves = 1; leaves <= 12; ++leaves) {
    const Node root{0, leaves};
    for (int64_t bits = 0; bits < int64_t{1} << (leaves - 1); ++bits) {  // every set of cuts
      std::vector<int64_t> cuts;
      for (int64_t i = 1; i < leaves; ++i) {
        if (bits >> (i - 1) & 1) {
          cuts.push_back(i);
        }
      }
      auto parts = nodes_of_ranks(cuts, leaves);
      ASSERT_EQ(merged(parts, root, plan_merge(parts, root)), expression(0, leaves));
      std::shuffle(parts.begin(), parts.end(), engine);
      ASSERT_EQ(merged(parts, root, plan_merge(parts, root)), expression(0, leaves));
    }
  }
}

TEST(Lattice, UpToFourRanksMergeToTheTreeOfOneRank) {
  for (int64_t leaves = 13; leaves <= 21; ++leaves) {
    const Node root{0, leaves};
    for (int64_t a = 0; a <= leaves; ++a) {
      for (int64_t b = a; b <= leaves; ++b) {
        for (int64_t c = b; c <= leaves; ++c) {
          const auto parts = nodes_of_ranks({a, b, c}, leaves);
          ASSERT_EQ(merged(parts, root, plan_merge(parts, root)), expression(0, leaves));
        }
      }
    }
  }
}

TEST(Lattice, MergesBelowAnInnerNode) {
  const Node root{8, 13};  // of the tree over 13
  const std::vector<Node> parts = {{12, 13}, {8, 10}, {10, 12}};
  EXPECT_EQ(merged(parts, root, plan_merge(parts, root)), "(((8+9)+(10+11))+12)");
}

TEST(Lattice, MergeInRingOrderIsAnotherSum) {
  std::string ring = "0";
  for (int i = 1; i < 8; ++i) {
    ring = "(" + ring + "+" + std::to_string(i) + ")";
  }
  EXPECT_NE(ring, expression(0, 8));
  EXPECT_EQ(expression(0, 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(Lattice, RefusesPartsThatDoNotMakeTheWhole) {
  const Node root{0, 8};
  const auto message = [&](const std::vector<Node>& parts) { return message_of_call([&] { plan_merge(parts, root); }); };
  EXPECT_EQ(message({{0, 4}, {4, 6}}), "[exact] merge over [0,8) of [0,4) [4,6): nobody holds leaf 6");
  EXPECT_EQ(message({{0, 4}, {4, 8}, {5, 6}}), "[exact] merge over [0,8) of [0,4) [4,8) [5,6): some overlap");
  EXPECT_EQ(message({{0, 4}, {4, 8}, {4, 6}}),
            "[exact] merge over [0,8) of [0,4) [4,8) [4,6): [4,6) begins where another does; accepted: nodes of the tree that hold "
            "every leaf once, such as [0,4) [4,8)");
  EXPECT_EQ(message({{0, 3}, {3, 8}}),
            "[exact] merge over [0,8) of [0,3) [3,8): [0,3) is not a node of its tree; accepted: nodes of the tree that hold every "
            "leaf once, such as [0,4) [4,8)");
  EXPECT_NE(message({}), "no error");
}

TEST(Lattice, RefusesACutInsideALeaf) {
  EXPECT_NO_THROW(verify_cuts(1, 101, 8, {26, 26, 26, 23}));
  EXPECT_EQ(message_of_call([] { verify_cuts(1, 101, 8, {25, 25, 25, 26}); }),
            "[exact] dim 1 of 101 has 8 leaves of 13; 4 ranks hold 25,25,25,26; the cut at 25 is inside leaf 1 [13,26); accepted: cuts "
            "at multiples of 13 (unit 13): 4 ranks hold 26,26,26,23; even cuts without a unit work for ranks: 1, 4, 8");
  EXPECT_EQ(message_of_call([] { verify_cuts(0, 16, 8, {6, 6, 4}); }), "no error");
  EXPECT_NE(message_of_call([] { verify_cuts(0, 32, 8, {11, 11, 10}); }).find("3 ranks hold 12,12,8"), std::string::npos);
  EXPECT_NE(message_of_call([] { verify_cuts(0, 16, 8, {8, 4}); }), "no error");
  EXPECT_NE(message_of_call([] { verify_cuts(0, 16, 8, {24, -8}); }), "no error");
}

// Against the definition: a cut is legal where a leaf begins or the dim ends.
TEST(Lattice, RefusesExactlyTheCutsInsideLeaves) {
  for (int64_t size = 1; size <= 40; ++size) {
    for (int64_t leaves = 1; leaves <= 10; ++leaves) {
      for (int64_t at = 0; at <= size; ++at) {
        bool is_legal = at == size;
        for (int64_t i = 0; i < leaves; ++i) {
          is_legal |= leaf_range(size, leaves, i).begin == at;
        }
        const std::string message = message_of_call([&] { verify_cuts(0, size, leaves, {at, size - at}); });
        EXPECT_EQ(message == "no error", is_legal) << message;
      }
    }
  }
}

TEST(Lattice, PartsHoldEveryLeafOnce) {
  using Nodes = std::vector<Node>;
  EXPECT_EQ(leaves_of_parts(0, 101, 8, {26, 26, 26, 23}), (Nodes{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(leaves_of_parts(0, 9, 8, {4, 4, 1, 0}), (Nodes{{0, 2}, {2, 4}, {4, 8}, {8, 8}}));  // leaves 5 to 7 are empty
  EXPECT_EQ(leaves_of_parts(0, 16, 8, {0, 6, 10, 0}), (Nodes{{0, 0}, {0, 3}, {3, 8}, {8, 8}}));
  EXPECT_EQ(leaves_of_parts(0, 0, 8, {0, 0}), (Nodes{{0, 8}, {8, 8}}));
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t leaves = 1; leaves <= 12; ++leaves) {
      for (int64_t ranks = 1; ranks <= 6; ++ranks) {
        std::vector<int64_t> parts;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          parts.push_back(cut(size, ranks, rank, leaf_unit(size, leaves)).size());
        }
        const auto held = leaves_of_parts(0, size, leaves, parts);
        int64_t leaf = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(held[rank].begin, leaf);
          int64_t elements = 0;
          for (; leaf < held[rank].end; ++leaf) {
            elements += leaf_range(size, leaves, leaf).size();
          }
          EXPECT_EQ(elements, parts[rank]);
        }
        EXPECT_EQ(leaf, leaves);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::layout
