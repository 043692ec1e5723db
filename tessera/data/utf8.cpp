#include "tessera/data/utf8.h"

#include <algorithm>
#include <cstring>

namespace tessera::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Character {
  size_t size = 0;  // bytes that belong together
  bool is_valid = false;
  bool is_cut = false;  // valid so far, but the text ends inside
};

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

// The range that the second byte of a character must lie in, by its first byte (Unicode, table 3-7).
std::pair<uint8_t, uint8_t> second_range(uint8_t first) {
  switch (first) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {0x80, 0xBF};
  }
}

Character read_character(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) {
    return {1, true};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {1};
  }
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  auto [low, high] = second_range(first);
  for (size_t at = 1; at < size; ++at) {
    if (at == text.size()) {
      return {at, false, true};
    }
    if (byte_at(text, at) < low || byte_at(text, at) > high) {
      return {at};
    }
    low = 0x80, high = 0xBF;
  }
  return {size, true};
}

bool is_space(std::string_view character) {
  if (character.size() == 1) {
    return character[0] == ' ' || (character[0] >= '\t' && character[0] <= '\r');
  }
  static constexpr std::string_view kSpaces[] = {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
                                                 "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200A",
                                                 "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
  return std::find(std::begin(kSpaces), std::end(kSpaces), character) != std::end(kSpaces);
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080ULL;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = kHighBits;
    if (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
    }
    if ((word & kHighBits) == 0) {
      at += sizeof(word);
      continue;
    }
    const auto character = read_character(text.substr(at));
    if (!character.is_valid) {
      break;
    }
    at += character.size;
  }
  return at;
}

size_t invalid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  for (; at < text.size();) {
    const auto character = read_character(text.substr(at));
    if (character.is_valid) {
      break;
    }
    at += character.size;
  }
  return at;
}

std::string_view first_character(std::string_view text) {
  return text.empty() ? text : text.substr(0, read_character(text).size);
}

std::string_view first_characters(std::string_view text, int64_t count) {
  size_t size = 0;
  for (; count > 0 && size < text.size(); --count) {
    size += first_character(text.substr(size)).size();
  }
  return text.substr(0, size);
}

std::string_view last_character(std::string_view text) {
  size_t start = text.size();
  while (start > 0 && (byte_at(text, --start) & 0xC0) == 0x80) {
  }
  return text.substr(start);
}

size_t leading_space(std::string_view text) {
  size_t size = 0;
  for (auto next = first_character(text); !next.empty() && is_space(next); next = first_character(text.substr(size))) {
    size += next.size();
  }
  return size;
}

size_t trailing_space(std::string_view text) {
  const size_t whole = text.size();
  for (auto last = last_character(text); !last.empty() && is_space(last); last = last_character(text)) {
    text.remove_suffix(last.size());
  }
  return whole - text.size();
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string shown;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const size_t valid = valid_utf8_prefix(rest);
    shown += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) {
      break;
    }
    const auto broken = read_character(rest);
    if (broken.is_cut) {
      break;
    }
    shown += kReplacement;
    rest.remove_prefix(broken.size);
  }
  held_ = std::string(rest);
  return shown;
}

std::string Utf8Stream::finish() {
  const bool has_half = !held_.empty();
  held_.clear();
  return std::string(has_half ? kReplacement : "");
}

}  // namespace tessera::data
