// Sums over samples on their way over the ranks that have parts of them: many by few collectives.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/dtensor/exact/held_leaves.h"
#include "tessera/dtensor/move/join_limits.h"
#include "tessera/dtensor/plan/exact_sum.h"
#include "tessera/dtensor/plan/merge_stages.h"

namespace tessera::dtensor {

struct RankState;

// One of them.
struct RankMerge {
  ScatteringMove way;
  MergeStages stages;                // over which axes it is merged
  sums::Node root;                   // of its tree
  std::vector<comm::NodeSum> mine;   // this rank's; once merged, its parts of those of all ranks
  std::vector<int64_t> sizes;        // of each
  at::TensorOptions options;         // of each
  const HeldLeaves* held = nullptr;  // what other ranks have, where those are imagined
  HeldLeaves::Wanted wanted = {};    // of that
  bool may_reuse = false;            // nobody else looks at the memory of `mine`
};

// Merges each over its axes. Those of one tree and the same stages are merged together: who has which nodes is said
// once a stage, and those that ranks have the same nodes of lie end to end for one collective, within the limits; small
// ones go along where others have more stages. Sums are added element by element, so each has the bits that it has
// alone. All ranks of the axes name the same sums in the same order. Collective over the axes.
void merge_over_ranks(RankState& state, const std::vector<RankMerge*>& merges, const JoinLimits& limits,
                      const char* op);

}  // namespace tessera::dtensor
