// Sums whose order does not depend on who holds what: partial sums of a tree's nodes, finished across ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/merge/merge_plan.h"

namespace tessera::comm {

// The sum over one node of a tree.
struct NodeSum {
  layout::Node node;
  at::Tensor sum;  // contiguous
};

// One member's call of Communicator::merge. All but `sums` and `memory` are the same on all members.
struct Merge {
  // Each member gets one part of a dim of every closed node.
  struct Scatter {
    int64_t dim = 0;
    std::vector<layout::Range> parts = {};  // by member; they may leave out elements, or share them
    bool operator==(const Scatter&) const = default;
  };
  enum class Memory : uint8_t {
    kKeep,   // the sums are not written to
    kReuse,  // nobody else looks at the sums' memory: results may lie there
  };

  const MergePlan& plan;
  std::vector<at::Tensor> sums = {};    // of plan.nodes()[rank], in that order: floating point, contiguous
  std::vector<int64_t> sizes = {};      // of every sum
  at::TensorOptions options = {};       // dtype and device of every sum
  std::optional<Scatter> scatter = {};  // nothing: every member gets the whole of every closed node
  Memory memory = Memory::kKeep;

  // Of what `member` gets.
  std::vector<int64_t> sizes_at(int64_t member) const;

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
std::vector<NodeSum> close_nodes(std::vector<NodeSum> nodes, const layout::Node& root);

// What every member holds, where a member knows its own nodes alone. They lie in `root`; they travel in tensors on
// `device`, as the sums will. Collective over the group.
MergePlan::Nodes exchange_nodes(Communicator& group, const std::vector<layout::Node>& mine, const layout::Node& root,
                                at::Device device);

}  // namespace tessera::comm
