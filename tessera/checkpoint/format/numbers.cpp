#include "tessera/checkpoint/format/numbers.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::string_view kDigits64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string hex(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) {
    text[15 - i] = kHexDigits[(value >> (4 * i)) & 15];
  }
  return text;
}

std::optional<uint64_t> try_parse_hex(std::string_view text) {
  uint64_t value = 0;
  for (const char digit : text) {
    const auto found = kHexDigits.find(digit);
    if (found == std::string_view::npos) {
      return std::nullopt;
    }
    value = value << 4 | found;
  }
  return text.size() == 16 ? std::optional(value) : std::nullopt;
}

std::string base64(const std::vector<uint64_t>& values) {
  std::string text;
  text.reserve((values.size() * 64 + 5) / 6);
  uint32_t bits = 0;
  int held = 0;
  for (const uint64_t value : values) {
    for (int byte = 0; byte < 8; ++byte) {
      bits = (bits << 8 | ((value >> (8 * byte)) & 255)) & 0xffff;
      for (held += 8; held >= 6; held -= 6) {
        text += kDigits64[(bits >> (held - 6)) & 63];
      }
    }
  }
  if (held > 0) {
    text += kDigits64[(bits << (6 - held)) & 63];
  }
  return text;
}

std::optional<std::vector<uint64_t>> try_parse_base64(std::string_view text) {
  std::vector<uint64_t> values(text.size() * 6 / 64, 0);
  uint32_t bits = 0;
  int held = 0;
  size_t byte = 0;
  for (const char digit : text) {
    const auto found = kDigits64.find(digit);
    if (found == std::string_view::npos) {
      return std::nullopt;
    }
    bits = (bits << 6 | static_cast<uint32_t>(found)) & 0xffff;
    held += 6;
    if (held >= 8 && byte < values.size() * 8) {
      held -= 8;
      values[byte / 8] |= static_cast<uint64_t>((bits >> held) & 255) << (8 * (byte % 8));
      ++byte;
    }
  }
  return base64(values) == text ? std::optional(std::move(values)) : std::nullopt;
}

}  // namespace tessera::checkpoint
