// The hash of a tensor's value, which no layout changes.
#pragma once

#include <cstdint>

#include "tessera/base/hash.h"

namespace tessera::base {

// What one element adds to the hash of a tensor's value, the sum over all elements modulo 2^64: in whatever order, and
// whoever holds them. `index` is the element's place in row-major order; `bits` are its bits, or all ones for any NaN.
// With bits of 0 these are the numbers of the generator SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
// Number Generators, 2014); of elements that follow each other the products with the index are sums.
constexpr uint64_t hash_element(uint64_t index, uint64_t bits) {
  return hash_mix((index + 1) * 0x9e3779b97f4a7c15ULL ^ bits);
}

}  // namespace tessera::base
