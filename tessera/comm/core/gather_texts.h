// Texts from rank to rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

// The texts of all ranks of the group, by position, on every rank. Collective.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine);

// The same where every rank knows how many bytes each of them has. In an imagined job, where nothing comes, ranks with
// as many bytes have this rank's text.
std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine, const std::vector<int64_t>& sizes);

}  // namespace tessera::comm
