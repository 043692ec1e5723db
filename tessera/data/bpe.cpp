#include "tessera/data/bpe.h"

#include <algorithm>
#include <queue>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/utf8.h"

namespace tessera::data {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string character_of(uint32_t code) {  // below 0x800
  return code < 0x80 ? std::string(1, static_cast<char>(code))
                     : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

bool is_printable(uint32_t byte) { return (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD); }

// A merge that could be made: the earliest in the list first, then the leftmost.
struct Candidate {
  int32_t rank, at, merged;
  bool operator>(const Candidate& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
};

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      all[byte] = character_of(is_printable(byte) ? byte : next++);
    }
    return all;
  }();
  return characters;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const auto bytes = [] {
    ska::flat_hash_map<std::string, char> all;
    for (size_t byte = 0; byte < 256; ++byte) {
      all[byte_characters()[byte]] = static_cast<char>(byte);
    }
    return all;
  }();
  std::string found;
  while (!text.empty()) {
    const auto character = first_character(text);
    const auto byte = bytes.find(std::string(character));
    if (byte == bytes.end()) {
      return std::nullopt;
    }
    found += byte->second;
    text.remove_prefix(character.size());
  }
  return found;
}

// The symbols of one piece, linked so that merging costs no moves. A merged one lives on at its left end.
struct Bpe::Symbols {
  struct Symbol {
    int32_t id, before, after;
    bool is_alive = true;
  };
  std::vector<Symbol> all;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;

  void consider(const Bpe& bpe, int32_t at) {
    if (at < 0 || all[at].after < 0) {
      return;
    }
    if (const auto* found = bpe.find(all[at].id, all[all[at].after].id)) {
      candidates.push({found->rank, at, found->merged});
    }
  }

  // Whether the two symbols are still those that the candidate was made for.
  bool is_current(const Bpe& bpe, const Candidate& candidate) const {
    const auto& left = all[candidate.at];
    if (!left.is_alive || left.after < 0) {
      return false;
    }
    const auto* found = bpe.find(left.id, all[left.after].id);
    return found != nullptr && found->merged == candidate.merged;
  }

  void make(const Bpe& bpe, const Candidate& candidate) {
    auto& left = all[candidate.at];
    auto& right = all[left.after];
    right.is_alive = false;
    left.id = candidate.merged;
    left.after = right.after;
    if (left.after >= 0) {
      all[left.after].before = candidate.at;
    }
    consider(bpe, left.before);
    consider(bpe, candidate.at);
  }
};

Bpe::Bpe(const std::vector<std::pair<std::string, int32_t>>& tokens, const std::vector<Merge>& merges,
         const BpeOptions& options) {
  bytes_.fill(-1);
  for (const auto& [bytes, id] : tokens) {
    if (bytes.size() == 1) {
      bytes_[static_cast<uint8_t>(bytes.front())] = id;
    }
  }
  const auto missing = std::count(bytes_.begin(), bytes_.end(), -1);
  const auto first = std::find(bytes_.begin(), bytes_.end(), -1) - bytes_.begin();
  TESSERA_CHECK_AS(DataError, missing == 0, "[tokenizer] the vocabulary lacks ", missing,
                   " of the 256 bytes, the first is ", first, " (\"", missing ? byte_characters()[first] : "",
                   "\"), so that it cannot encode every text; accepted: one trained "
                   "with initial_alphabet = ByteLevel.alphabet()");
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    merges_[key_of(merges[rank].left, merges[rank].right)] = {static_cast<int32_t>(rank), merges[rank].merged};
  }
  std::vector<int32_t> made;
  for (const auto& [bytes, id] : tokens) {
    made.clear();
    merge(bytes, made);
    if (options.ignore_merges || made == std::vector{id}) {
      whole_[bytes] = id;
      longest_whole_ = std::max(longest_whole_, bytes.size());
    }
  }
}

const Bpe::Ranked* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() <= longest_whole_) {
    if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  merge(piece, out);
}

void Bpe::merge(std::string_view piece, std::vector<int32_t>& out) const {
  const auto count = static_cast<int32_t>(piece.size());
  Symbols symbols;
  symbols.all.reserve(piece.size());
  for (int32_t at = 0; at < count; ++at) {
    symbols.all.push_back({bytes_[static_cast<uint8_t>(piece[at])], at - 1, at + 1 < count ? at + 1 : -1});
  }
  for (int32_t at = 0; at + 1 < count; ++at) {
    symbols.consider(*this, at);
  }
  while (!symbols.candidates.empty()) {
    const auto best = symbols.candidates.top();
    symbols.candidates.pop();
    if (symbols.is_current(*this, best)) {
      symbols.make(*this, best);
    }
  }
  for (int32_t at = 0; at >= 0 && at < count; at = symbols.all[at].after) {
    out.push_back(symbols.all[at].id);
  }
}

}  // namespace tessera::data
