// Tokens that are found in a text before anything else is done with it: `<|endoftext|>`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tessera/data/pattern.h"

namespace tessera::data {

// As in a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no letter, number or mark touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool normalized = true;    // searched for after those that are not
  bool special = false;      // not text: `decode` may leave it out
};

// Immutable and thread-safe; moves, but has no copies. Of the tokens that match at a place the longest wins, and the
// leftmost place wins.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens = {});
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  const std::vector<AddedToken>& all() const { return tokens_; }

  // Calls `part(text, id)` for each part of the valid UTF-8, in order: a token, or text between tokens with id -1.
  void for_each_part(std::string_view text, c10::function_ref<void(std::string_view, int32_t)> part) const;

 private:
  // Tokens searched for together, by first byte, the longest first.
  using Search = std::array<std::vector<const AddedToken*>, 256>;

  const AddedToken* find(const Search& search, std::string_view text, size_t from, size_t& at) const;
  bool stands_alone(std::string_view before, std::string_view after) const;
  void run(const Search& search, std::string_view text, c10::function_ref<void(std::string_view, int32_t)> part) const;

  std::vector<AddedToken> tokens_;
  Search first_, second_;  // not normalized; normalized
  Pattern word_;
};

}  // namespace tessera::data
