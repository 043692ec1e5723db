// Numbers of 64 bits as texts of JSON, whose own numbers other programs read as doubles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// 16 digits: 00000000deadbeef.
std::string hex(uint64_t value);

// What hex() wrote, and nothing else.
std::optional<uint64_t> try_parse_hex(std::string_view text);

// The numbers' bytes, lowest first, in base 64 (RFC 4648, without padding): 11 characters for one, 10.7 for each of
// many.
std::string base64(const std::vector<uint64_t>& values);

// What base64() wrote, and nothing else.
std::optional<std::vector<uint64_t>> try_parse_base64(std::string_view text);

}  // namespace tessera::checkpoint
