// The regular expressions of tokenizers, as their authors' engine reads them.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include <c10/util/FunctionRef.h>

namespace tessera::data {

// A regular expression over valid UTF-8. Immutable; copies share the compiled form; thread-safe.
//
// The dialect is the common part of Oniguruma's, which wrote the files, and of PCRE2, which runs them: literals,
// classes,
// `\p{L}` and scripts, \s \S \d \w, groups, (?i:...), look-around, greedy, lazy and possessive quantifiers. \s is
// Unicode's White_Space, \w what is alphabetic, a mark, a decimal digit or a connector. What the two read differently
// is refused, not guessed.
class Pattern {
 public:
  // Throws DataError that names what is not supported.
  explicit Pattern(std::string_view expression);

  // The expression that matches this text and nothing else.
  static Pattern literal(std::string_view text);

  // Calls `found(begin, end)` for every match in turn; matches do not overlap and are not empty.
  void for_each_match(std::string_view text, c10::function_ref<void(size_t, size_t)> found) const;

  // Whether `text` has a match somewhere.
  bool matches(std::string_view text) const;

 private:
  struct Compiled;
  explicit Pattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tessera::data
