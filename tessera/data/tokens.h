// A flat row of tokens, in memory or in a file, of one, two or four bytes each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/mapped_file.h"

namespace tessera::data {

// Bytes of one token.
enum class TokenWidth : int64_t { kByte = 1, kTwo = 2, kFour = 4 };

// Read-only. Copies and slices share the memory; thread-safe.
class Tokens {
 public:
  Tokens() = default;

  // Every byte of the file is a token.
  static Tokens of_bytes(const MappedFile& file);

  // Takes the tokens over, in as few bytes each as `vocabulary`, the number of different ones, allows: two or four.
  static Tokens of(const std::vector<int32_t>& tokens, int64_t vocabulary);

  // A file of pre-tokenised text, little-endian: either nothing but tokens of `width` bytes, as nanoGPT writes it, or
  // the header of llm.c (256 int32: magic 20240520 and version 1 for two bytes, 20240801 and 7 for four, then the
  // number of tokens), which decides the width itself. Throws DataError for a torn file.
  static Tokens of_bin(const MappedFile& file, TokenWidth width);

  int64_t size() const { return size_; }
  TokenWidth width() const { return width_; }

  // The token at a place in [0, size()).
  int64_t operator[](int64_t at) const;

  // Writes the tokens [begin, begin + count) to `out`.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  // The tokens [begin, begin + count), which must lie in [0, size()).
  Tokens slice(int64_t begin, int64_t count) const;

 private:
  Tokens(std::shared_ptr<const void> owner, const void* start, int64_t size, TokenWidth width)
      : owner_(std::move(owner)), start_(static_cast<const uint8_t*>(start)), size_(size), width_(width) {}

  std::shared_ptr<const void> owner_;
  const uint8_t* start_ = nullptr;
  int64_t size_ = 0;
  TokenWidth width_ = TokenWidth::kByte;
};

// The entropy, in nats per token, of how often each token occurs: what a model without context can reach. 0 if empty.
double unigram_entropy(const Tokens& tokens);

}  // namespace tessera::data
