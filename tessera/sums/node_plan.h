// A sum over one dim that is finished at once: which nodes of its tree a rank adds, and how ranks merge them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/spec.h"
#include "tessera/sums/lattice.h"
#include "tessera/sums/merge_bytes.h"
#include "tessera/sums/merge_plan.h"

namespace tessera::sums {

// Where the summed dim stands in the operands.
struct SummedDim {
  int arg = 0;  // of the call, a single tensor
  int64_t dim = 0;
};

// How one merge changes the layout of a sum.
struct Merging {
  std::optional<Scatter> scatter;  // nothing: it replicates
  layout::Spec from, to;           // Partial where merges are still to come; for the flight recorder
};

// A rank computes the nodes that cover its leaves, the ranks of the axes that cut the dim merge them.
struct NodePlan {
  struct Run {
    Node node;
    int64_t begin = 0, length = 0;  // elements of this rank's part of the dim
    bool operator==(const Run&) const = default;
  };
  struct Axis {
    int64_t axis = 0;
    MergePlan plan;
    Merging merging;
  };
  Node root;
  std::vector<SummedDim> dims;
  std::vector<Run> runs;
  std::vector<Axis> axes;  // in the order of the merges, fastest first
};

// The tree over a dim of `size` elements cut into `leaves`: leaves that no element is in are none of its.
Node root_of(int64_t size, int64_t leaves);

// The nodes of that tree over the elements `held`, which begin and end between leaves.
std::vector<NodePlan::Run> runs_of(const layout::Range& held, int64_t size, int64_t leaves);

// What the members of a group hold when theirs are these leaves of that tree.
MergePlan plan_merge(const std::vector<Node>& members, const Node& root);

}  // namespace tessera::sums
