// Over which axes sums that ranks have parts of are merged at once, and over which one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/dtensor/plan/exact_sum.h"

namespace tessera::dtensor {

// The axes of each merge, in their order on the mesh.
using MergeStages = std::vector<std::vector<int64_t>>;

// The merges, over neighbours among `axes`, that send fewest bytes, then the fewest of them, where every rank has one
// node of the tree over `root`, of `bytes` bytes. The bits are the same for all: sums are added in the order of their
// tree.
//
// T bytes that N ranks merge are 2 T (N-1)/N where all get the whole, else what the others get. So two axes are merged
// at once where neither scatters, or both do: over A and B ranks 2 T (AB-1)/AB, not 2 T (A-1)/A + 2 T (B-1)/B. Where
// the first one scatters and the second one does not (hybrid sharding), they are merged one after the other, the second
// 1/A of the bytes. Lists of nodes count too, where they are long.
MergeStages merge_stages(const ScatteringMove& way, const std::vector<int64_t>& axes, const sums::Node& root,
                         double bytes);

}  // namespace tessera::dtensor
