// UTF-8: where a text stops being valid, what white space is, and a stream that never shows half a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

// How many bytes at the start of `text` are whole, valid characters (no surrogates, no overlong forms).
size_t valid_utf8_prefix(std::string_view text);

// How many bytes at the start of `text` come before the next valid character, or before its end.
size_t invalid_utf8_prefix(std::string_view text);

// The size in bytes of the white space (Unicode's White_Space) that the valid text starts or ends with.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

// As many characters of a valid text as there are, `count` at most.
std::string_view first_characters(std::string_view text, int64_t count);

// The first and the last character of a valid text; empty for an empty one.
std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);

// Bytes in, valid UTF-8 out: holds back the start of a character until its end has come, and writes U+FFFD for each
// maximal part that can no longer become one. Not thread-safe.
class Utf8Stream {
 public:
  // What can be shown now that `bytes` have come.
  std::string push(std::string_view bytes);

  // What can be shown at the end: U+FFFD if half a character was held back.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace tessera::data
