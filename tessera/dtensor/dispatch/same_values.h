// Whether the ranks hold the same plain tensors.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// A plain tensor that every rank should hold, and what messages call it.
struct NamedValue {
  std::string name;
  at::Tensor tensor;
};

// How `values` differ between the ranks of `mesh`: `labels is Long[4, 12] on rank 0, other values on rank 1, Long[3,
// 12] on rank 2`; empty where they are the same everywhere. Sizes, dtype and every byte count; of a DTensor, and of a
// tensor whose memory cannot be read (meta, sparse, inside torch.func), the sizes and the dtype. Collective over the
// mesh: two numbers a rank, and a text if something differs.
std::string difference_between_ranks(RankState& state, const layout::Mesh& mesh, const std::vector<NamedValue>& values);
// The same between the ranks of a group. Collective over them.
std::string difference_between_ranks(comm::Communicator& ranks, const std::vector<NamedValue>& values);

// The text of each rank of the group, by position, all of one size: unseen by the program's transforms and modes, as
// the above. In an imagined job all are this rank's. Collective over the group.
std::vector<std::string> gather_unseen(comm::Communicator& ranks, const std::string& mine);

}  // namespace tessera::dtensor
