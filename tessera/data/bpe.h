// Byte-level byte-pair encoding: a piece of text as the tokens that its merges make of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/flat_hash_map.h>

namespace tessera::data {

// The printable character that stands for each byte in vocabularies of byte-level BPE: `Ġ` for a space.
const std::array<std::string, 256>& byte_characters();

// The bytes that a token's text stands for, or nothing if one of its characters stands for none.
std::optional<std::string> bytes_of_characters(std::string_view text);

// Two neighbouring tokens that become one; those that stand first in a list of merges are made first.
struct Merge {
  int32_t left = 0, right = 0, merged = 0;
};

struct BpeOptions {
  // A piece that is a token as it stands is that token, whatever the merges say.
  bool ignore_merges = false;
};

// Immutable and thread-safe.
class Bpe {
 public:
  // `tokens` maps the bytes of each token of the model to its id. Throws DataError if a single byte is missing.
  Bpe(const std::vector<std::pair<std::string, int32_t>>& tokens, const std::vector<Merge>& merges,
      const BpeOptions& options);

  // Appends the tokens of a piece, any bytes. Time n log n.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  struct Ranked {
    int32_t rank = 0, merged = 0;
  };
  struct Symbols;

  const Ranked* find(int32_t left, int32_t right) const;
  void merge(std::string_view piece, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> bytes_{};
  ska::flat_hash_map<uint64_t, Ranked> merges_;
  ska::flat_hash_map<std::string, int32_t> whole_;  // pieces whose tokens are known to be this one
  size_t longest_whole_ = 0;
};

}  // namespace tessera::data
