// The levels of the sum of squares of a tensor's elements: leaves of columns, and rows.
#pragma once

#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/layout/cut.h"
#include "tessera/sums/lattice.h"

namespace tessera::dtensor {

// One level of the sum: `leaves` leaves along a dim, an index of which holds `each` things.
struct NormLevel {
  int64_t dim = 0;
  int64_t size = 0;  // of the dim
  int64_t each = 1;
  int64_t leaves = 1;

  int64_t all() const { return size * each; }
  int64_t leaf() const { return sums::leaf_unit(all(), leaves); }
  sums::Node root() const { return sums::leaves_of({0, all()}, all(), leaves); }
  layout::Range things(const layout::Range& indices) const { return {indices.begin * each, indices.end * each}; }
  bool is_of_whole_leaves(const layout::Range& indices) const {
    return sums::is_of_whole_leaves(things(indices), all(), leaves);
  }
  std::vector<sums::Node> cover(const layout::Range& indices) const {
    return sums::cover(sums::leaves_of(things(indices), all(), leaves), root().end);
  }
};

NormLevel columns_of(c10::IntArrayRef sizes);
// Each row is a leaf. A tensor of one dim is one row, which no axis cuts.
NormLevel rows_of(c10::IntArrayRef sizes);

// The nodes that these indices of a level hold.
std::vector<sums::Node> nodes_of(const NormLevel& level, const std::vector<layout::Range>& runs);

}  // namespace tessera::dtensor
