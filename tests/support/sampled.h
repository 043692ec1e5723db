// Of many cells a test runs some, drawn anew in each run: all of them with TESSERA_FULL=1 or TESSERA_CELLS=all, and the
// same again with the TESSERA_SEED that is printed.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace tessera::support {

// What draws are made from, printed once.
inline uint64_t seed_of_samples() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TESSERA_SEED");
    const uint64_t drawn = given ? std::stoull(given) : std::random_device()();
    std::cout << "sampled with TESSERA_SEED=" << drawn << std::endl;
    return drawn;
  }();
  return seed;
}

// So many of the cells in their order; `key` tells apart draws that should not be of the same places.
template <typename Cell>
std::vector<Cell> sampled(const std::vector<Cell>& cells, size_t count, const std::string& key = "") {
  if (std::getenv("TESSERA_FULL") || std::getenv("TESSERA_CELLS") || count >= cells.size()) {
    return cells;
  }
  std::mt19937_64 draws(seed_of_samples() + std::hash<std::string>()(key));
  std::vector<Cell> some;
  std::sample(cells.begin(), cells.end(), std::back_inserter(some), count, draws);
  return some;
}

}  // namespace tessera::support
