// The hash of a tensor's value, which no layout changes.
#pragma once

#include <cstdint>

#include "tessera/base/hash.h"

namespace tessera::base {

// What one element adds to the hash of a tensor's value, the sum over all elements modulo 2^64: in whatever order, and
// whoever holds them. `index` is the element's place in row-major order; `bits` are its bits, or all ones for any NaN.
constexpr uint64_t hash_element(uint64_t index, uint64_t bits) { return hash_mix(hash_mix(index + 1) ^ bits); }

}  // namespace tessera::base
