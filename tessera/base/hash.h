// 64-bit hashing that gives the same value in every process, on every rank, in every run.
//
// Not cryptographic. Unlike std::hash, safe to compare across ranks and to store.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera::base {

// A bijection of 64 bits in which every input bit reaches every output bit (the finaliser of SplitMix64).
constexpr uint64_t hash_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The hash of a sequence so far, extended by one value. Order matters.
constexpr uint64_t hash_combine(uint64_t seed, uint64_t value) {
  return hash_mix(std::rotl(seed, 23) + 0x9e3779b97f4a7c15ULL + hash_mix(value + 0x9e3779b97f4a7c15ULL));
}

// The hash of `size` bytes. Bytes are taken as little-endian words, the tail padded with zeros; the size is hashed too.
inline uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = hash_combine(seed, size);
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
    hash = hash_combine(hash, word);
  }
  return hash;
}

// The hash of a text.
inline uint64_t hash_string(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}

// The hash of a sequence of integers (or enums); the length is hashed too.
template <typename Range>
constexpr uint64_t hash_range(const Range& values, uint64_t seed = 0) {
  uint64_t count = 0;
  for (const auto& value : values) {
    seed = hash_combine(seed, static_cast<uint64_t>(value));
    ++count;
  }
  return hash_combine(seed, count);
}

}  // namespace tessera::base
