// The order of exact sums as index arithmetic: leaves of a dim, the tree over them, who computes what of it, how it is
// merged.
//
// Nothing here depends on how many ranks there are; that is the point. A sum over a dim of n elements is cut into L
// leaves and its leaves are added in the order of one tree. A rank that holds some leaves computes the nodes that cover
// them, and the merge finishes the tree from the nodes of all ranks with the additions that one rank alone would have
// made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/placement.h"

namespace tessera::sums {

// The finest layout a job may ever use: the number of leaves of a dim, by what the dim counts.
//
// A value, stored with checkpoints: the same lattice gives the same bits. It bounds the degrees of parallelism.
// Printed and parsed as `batch=8,sequence=1,feature=8`.
struct Lattice {
  int64_t batch = 8;
  int64_t sequence = 1;
  int64_t feature = 8;

  // Reads the names in any order; one that is left out keeps its default. Throws ConfigError with the accepted form for
  // anything else, a repeated name and a number below one included.
  static Lattice parse(std::string_view text);

  std::string str() const;
  bool operator==(const Lattice&) const = default;
  uint64_t hash() const;  // the same in every process
};

// Elements of a leaf of a dim of `size` elements, ceil(size / leaves): 0 only for size 0.
int64_t leaf_length(int64_t size, int64_t leaves);

// The elements of leaf `index`. The last leaves may be short, or empty at [size, size).
layout::Range leaf_range(int64_t size, int64_t leaves, int64_t index);

// The unit that makes `cut` fall between leaves: Shard(dim, {.unit = leaf_unit(size, leaves)}).
int64_t leaf_unit(int64_t size, int64_t leaves);

// The leaves [begin, end) of a tree. Printed as `[2,4)`.
struct Node {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  std::string str() const;
  bool operator==(const Node&) const = default;
};

// How many of `size` things the left child of their root holds: the largest power of two below `size`, which is at
// least 2. A subtree's shape depends on its size alone, so this one function is the whole tree.
int64_t left_size(int64_t size);

// How many finished subtrees thing `index` of `size` things completes, when they come in order: each is added to the
// newest sum that waits. (The tree as a binary counter: trailing one bits of `index`; the last thing completes all that
// wait.)
int64_t closes_after(int64_t index, int64_t size);

// True if `node` is a node of the tree over `root`, which is one itself.
bool is_node_of(const Node& node, const Node& root);

// The fewest nodes of the tree over [0, leaves) whose union is `part`, in order; none for an empty part.
std::vector<Node> cover(const Node& part, int64_t leaves);

// The leaves that `held` of a dim touches; none if it is empty.
Node leaves_of(const layout::Range& held, int64_t size, int64_t leaves);

// Whether `held` begins and ends between leaves.
bool is_of_whole_leaves(const layout::Range& held, int64_t size, int64_t leaves);

// Why a dim may not be cut so: the cut, the leaf that it is in, and what would work. `dim` is for the text.
std::string describe_cut(int64_t dim, const layout::Range& held, int64_t size, int64_t leaves);

}  // namespace tessera::sums
