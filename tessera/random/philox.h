// Philox4x32-10: a counter and a key give four random words, with no state between draws.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::random {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxWords = std::array<uint32_t, 4>;

// The block of `counter` under `key`: ten rounds, as in Random123, curand and torch.
constexpr PhiloxWords philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// The block that curand draws after `curand_init(seed, subsequence, 4 * block)`.
constexpr PhiloxWords philox_curand(uint64_t seed, uint64_t subsequence, uint64_t block) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(subsequence),
                 static_cast<uint32_t>(subsequence >> 32)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace tessera::random
