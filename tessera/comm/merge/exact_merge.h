// Sums whose order does not depend on who holds what: partial sums of a tree's nodes, finished across ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/communicator.h"
#include "tessera/sums/merge_bytes.h"
#include "tessera/sums/merge_plan.h"

namespace tessera::comm {

// The sum over one node of a tree.
struct NodeSum {
  sums::Node node;
  at::Tensor sum;  // contiguous
};

// One member's call of Communicator::merge. All but `sums` and `memory` are the same on all members.
struct Merge {
  enum class Memory : uint8_t {
    kKeep,   // the sums are not written to
    kReuse,  // nobody else looks at the sums' memory: results may lie there
  };

  const sums::MergePlan& plan;
  std::vector<at::Tensor> sums = {};  // of plan.nodes()[rank], in that order: floating point, contiguous
  std::vector<int64_t> sizes = {};    // of every sum
  at::TensorOptions options = {};     // dtype and device of every sum
  // Nothing: every member gets the whole of every closed node.
  std::optional<sums::Scatter> scatter = {};
  Memory memory = Memory::kKeep;

  // Of what `member` gets.
  std::vector<int64_t> sizes_at(int64_t member) const { return sums::sizes_at(member, sizes, scatter); }

  // What `member` sends, for the ledger (sums/merge_bytes.h).
  int64_t bytes_sent(int64_t member) const {
    return sums::bytes_sent(plan, member, sizes, static_cast<int64_t>(options.dtype().itemsize()), scatter);
  }

  // `[0,8) of [0,4) | [4,8), Float[16, 4], dim 0 in 8,8`.
  std::string str() const;
};

// Throws if the sums of the calling member do not fit the rest, or the rest does not fit the group.
void verify_merge(const Communicator& group, const Merge& merge);

// Whether two members ask for the same.
bool is_same(const Merge& a, const Merge& b);

// The merge over copies, for backends without a better way: an all-gather of all sums up to 64 KiB, all-to-all of
// shards and all-gather of their results above, all-to-all alone to scatter. Bytes sent are those of a ring for each
// node that a member holds. Collective over the group.
std::vector<NodeSum> merge_by_copies(Communicator& group, const Merge& merge);

// Adds neighbours that are the two children of a node of the tree over `root`, until none are left. The nodes must not
// overlap; they come back in order. Sums are not written to.
std::vector<NodeSum> close_nodes(std::vector<NodeSum> nodes, const sums::Node& root);

// What every member holds of each of several sums, where a member knows its own nodes alone: `mine[i]` those of sum i,
// which lie in `root`. They travel in one tensor on `device`, as the sums will. Collective over the group.
std::vector<sums::MergePlan::Nodes> exchange_nodes(Communicator& group,
                                                   const std::vector<std::vector<sums::Node>>& mine,
                                                   const sums::Node& root, at::Device device);

}  // namespace tessera::comm
