// What a merge of exact sums sends, for the ledger.
#pragma once

#include <cstdint>

#include "tessera/comm/merge/exact_merge.h"

namespace tessera::comm {

// What `member` sends in a merge, as rings send it: of every node that it holds what the others finish and, unless they
// keep it apart, what it finishes itself of every closed node to each of them.
int64_t bytes_sent(const Merge& merge, int64_t member);

// What a member sends to each of the others in exchange_nodes.
int64_t bytes_of_nodes(const layout::Node& root);

}  // namespace tessera::comm
