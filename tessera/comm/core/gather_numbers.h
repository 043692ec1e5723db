// Numbers from rank to rank.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

// The number of each rank of the group, by position, on every rank. Collective.
std::vector<int64_t> gather_numbers(Communicator& ranks, int64_t mine);

// The numbers of each, where every rank knows how many each has. Collective.
std::vector<std::vector<int64_t>> gather_numbers(Communicator& ranks, const std::vector<int64_t>& mine,
                                                 const std::vector<int64_t>& counts);

}  // namespace tessera::comm
