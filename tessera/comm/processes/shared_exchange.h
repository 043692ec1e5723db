// Tensors between processes that share memory.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/processes/shared_board.h"

namespace tessera::comm {

// Whether a board has room for pieces of what each member of so many gives to each.
bool fits_board(int64_t members);

// `taken[i]` becomes member i's `given[member]`, for all members but the calling one, `member`; all are contiguous. A
// member that gives all others the same leaves it once. False on all members, and nothing is taken, if what one gives
// and what another expects of it differ in sizes or dtype. Collective over the group; throws as SharedBoard::meet.
bool run_exchange(SharedBoard& board, const Round& round, const std::vector<at::Tensor>& taken,
                  const std::vector<at::Tensor>& given, int64_t member);

}  // namespace tessera::comm
