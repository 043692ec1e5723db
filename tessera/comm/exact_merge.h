// Sums whose order does not depend on who holds what: partial sums of a tree's nodes, finished across ranks.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/communicator.h"
#include "tessera/layout/lattice.h"

namespace tessera::comm {

// The sum over one node of a tree.
struct NodeSum {
  layout::Node node;
  at::Tensor sum;  // contiguous; the same sizes for all nodes of a merge
};

// Adds neighbours that are the two children of a node of the tree over `root`, until none are left. The nodes must not
// overlap; they come back in order. Sums are not written to.
std::vector<NodeSum> close_nodes(std::vector<NodeSum> nodes, const layout::Node& root);

// Merges the nodes of all members: every member gets the closed nodes of all. `nodes[i]` are those of member i, in the order
// of their sums on that member; what overlaps or is missing is the caller's error (missing ones stay open).
//
// Only copies travel (all-gather; above 64 KiB all-to-all of shards, then all-gather), never a library's sum, so that every
// backend gives the same bits. Bytes sent: those of a ring all-reduce for each node that a member holds. `like` has the sizes
// and options of the sums, for a member without any. Collective over the group.
std::vector<NodeSum> merge_nodes(Communicator& group, const std::vector<NodeSum>& mine, const std::vector<std::vector<layout::Node>>& nodes,
                                 const layout::Node& root, const at::Tensor& like);

}  // namespace tessera::comm
