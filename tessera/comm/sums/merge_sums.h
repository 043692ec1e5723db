// A merge where all members' sums can be read: the whole tree in one pass over the elements.
#pragma once

#include <vector>

#include "tessera/comm/call/call.h"
#include "tessera/comm/merge/exact_merge.h"

namespace tessera::comm {

// Tensors for what `member` gets, one for each closed node: new ones, or, where the merge may reuse memory, those of
// the member's sums that nobody needs once the node is added.
std::vector<at::Tensor> merge_results(const Merge& merge, int64_t member);

std::vector<NodeSum> with_nodes(const sums::MergePlan& plan, const std::vector<at::Tensor>& sums);

// Does part `part` (one of calls.size()) of the merge that `calls` describe, as `transfer`: a share of the elements for
// all members, or, of a scatter, all that one member gets. CPU tensors only.
void merge_sums(const std::vector<const Call*>& calls, size_t part);

// results[k][i] = closed node k of sums[.][i]: all members' sums, those of member 0 first, flat and of equal length. A
// result may be one of the sums. CPU tensors only.
void merge_piece(const sums::MergePlan& plan, const std::vector<at::Tensor>& sums,
                 const std::vector<at::Tensor>& results);

}  // namespace tessera::comm
