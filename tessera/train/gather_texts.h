// Texts from rank to rank.
#pragma once

#include <string>
#include <vector>

namespace tessera::train {

// The texts of all ranks, by rank, on every rank. Collective over the world.
std::vector<std::string> gather_texts(const std::string& mine);

}  // namespace tessera::train
