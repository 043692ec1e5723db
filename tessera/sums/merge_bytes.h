// What a merge of exact sums sends, for the ledger.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/layout/placement.h"
#include "tessera/sums/merge_plan.h"

namespace tessera::sums {

// Each member gets one part of a dim of every closed node.
struct Scatter {
  int64_t dim = 0;
  std::vector<layout::Range> parts = {};  // by member; they may leave out elements, or share them
  bool operator==(const Scatter&) const = default;
};

// Of what `member` gets of sums of `sizes`; without a scatter it is the whole.
std::vector<int64_t> sizes_at(int64_t member, c10::IntArrayRef sizes, const std::optional<Scatter>& scatter);

// What `member` sends when sums of `sizes`, of `item` bytes an element, are merged, as rings send it: of every node
// that it holds what the others finish and, unless they keep it apart, what it finishes itself of every closed node to
// each of them.
int64_t bytes_sent(const MergePlan& plan, int64_t member, c10::IntArrayRef sizes, int64_t item,
                   const std::optional<Scatter>& scatter);

// What a member sends to each of the others when they tell which nodes of the tree over `root` they hold.
int64_t bytes_of_nodes(const Node& root);

}  // namespace tessera::sums
