// The pieces of a text that byte-pair encoding never looks across.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tessera/data/pattern.h"

namespace tessera::data {

// What becomes of the text around the matches of a split.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous };

// One step of a pre-tokenizer; each works on the pieces of the one before.
struct PreTokenizerStep {
  enum class Kind { kSplit, kPrefixSpace };

  Kind kind = Kind::kSplit;
  std::optional<Pattern> pattern = {};                // of a split: what separates
  SplitBehavior behavior = SplitBehavior::kIsolated;  // matches are pieces; are dropped; touching ones are one piece
  bool is_inverted = false;                           // what lies between the matches separates instead
};

// Steps in order. Immutable; thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps = {}) : steps_(std::move(steps)) {}

  // Calls `piece` for each piece of the valid UTF-8, in order; none is empty. A view lives until `piece` returns.
  void for_each_piece(std::string_view text, c10::function_ref<void(std::string_view)> piece) const;

  // Whether a text that does not begin with a space gets one in front.
  bool puts_space_in_front() const;

  // The split of GPT-2, which a ByteLevel with use_regex makes.
  static PreTokenizerStep gpt2_split();

 private:
  void run(size_t step, std::string_view text, c10::function_ref<void(std::string_view)> piece) const;

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace tessera::data
