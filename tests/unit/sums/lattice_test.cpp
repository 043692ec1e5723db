#include "tessera/sums/lattice.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::sums::lattice_test {
namespace {

using layout::Cut;
using layout::Range;

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

TEST(Lattice, PrintsAndParses) {
  EXPECT_EQ(Lattice().str(), "batch=8,sequence=1,feature=8");
  for (const Lattice& lattice : {Lattice{}, Lattice{16, 4, 3}, Lattice{.sequence = 2}, Lattice{1, 1, 1}}) {
    EXPECT_EQ(Lattice::parse(lattice.str()), lattice);
  }
  EXPECT_EQ(Lattice::parse("feature = 4, batch = 2"), (Lattice{2, 1, 4}));
  for (const char* text : {"", "batch", "batch=0", "batch=-1", "batch=8,batch=8", "heads=8", "batch=8;feature=8",
                           "batch=8=8", "batch=x", "batch=8,"}) {
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
        for (int64_t rank = 0; rank < ranks; ++rank) {
          EXPECT_TRUE(is_of_whole_leaves(Cut(size, ranks, leaf_unit(size, leaves))[rank], size, leaves));
        }
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

TEST(Lattice, MergeInRingOrderIsAnotherSum) {
  std::string ring = "0";
  for (int i = 1; i < 8; ++i) {
    ring = "(" + ring + "+" + std::to_string(i) + ")";
  }
  EXPECT_NE(ring, expression(0, 8));
  EXPECT_EQ(expression(0, 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(Lattice, ACutInsideALeafIsDescribed) {
  EXPECT_EQ(describe_cut(1, {0, 25}, 101, 8),
            "dim 1 of 101 has 8 leaves of 13; the cut at 25 is inside leaf 1 [13,26); accepted: cuts at multiples of "
            "13, S(1;13); even cuts "
            "without a unit fit over 1, 4, 8 ranks");
  EXPECT_NE(describe_cut(0, {11, 22}, 32, 8).find("the cut at 11 is inside leaf 2 [8,12)"), std::string::npos);
  EXPECT_NE(describe_cut(0, {8, 9}, 16, 1).find("1 leaf of 16; the cut at 8"), std::string::npos);
}

// Against the definition: a cut is legal where a leaf begins or the dim ends, and a part touches the leaves that it has
// elements of.
TEST(Lattice, PartsAreOfWholeLeavesOrNot) {
  for (int64_t size = 1; size <= 30; ++size) {
    for (int64_t leaves = 1; leaves <= 10; ++leaves) {
      const auto is_legal = [&](int64_t at) {
        bool found = at == size;
        for (int64_t i = 0; i < leaves; ++i) {
          found |= leaf_range(size, leaves, i).begin == at;
        }
        return found;
      };
      for (int64_t begin = 0; begin < size; ++begin) {
        EXPECT_TRUE(is_of_whole_leaves({begin, begin}, size, leaves));
        EXPECT_EQ(leaves_of({begin, begin}, size, leaves), Node());
        for (int64_t end = begin + 1; end <= size; ++end) {
          EXPECT_EQ(is_of_whole_leaves({begin, end}, size, leaves), is_legal(begin) && is_legal(end));
          const Node touched = leaves_of({begin, end}, size, leaves);
          for (int64_t i = 0; i < leaves; ++i) {
            const Range leaf = leaf_range(size, leaves, i);
            const bool shares = std::max(leaf.begin, begin) < std::min(leaf.end, end);
            EXPECT_EQ(touched.begin <= i && i < touched.end, shares);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::sums::lattice_test
