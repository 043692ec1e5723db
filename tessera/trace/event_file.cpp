#include "tessera/trace/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::trace {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ (remainder & 1 ? 0x82f63b78u : 0);
    }
    table[i] = remainder;
  }
  return table;
}

// A checksum of data that may hold checksums is a weak one: the format turns and shifts it.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

template <typename Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

// Fields of protobuf messages: a key of number and wire type, then the value.
enum Wire : uint64_t { kVarint = 0, kEight = 1, kLength = 2, kFour = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}

std::string key(uint64_t field, Wire wire) { return varint(field << 3 | wire); }
std::string text_field(uint64_t field, std::string_view text) {
  return key(field, kLength) + varint(text.size()) + std::string(text);
}
std::string double_field(uint64_t field, double value) {
  return key(field, kEight) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string float_field(uint64_t field, float value) {
  return key(field, kFour) + little_endian(std::bit_cast<uint32_t>(value));
}

// Of Event: wall_time 1, step 2, file_version 3, summary 5; of Summary: value 1; of its Value: tag 1, simple_value 2.
std::string wall_time() {
  return double_field(1, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

std::string file_name() {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const auto seconds = std::chrono::system_clock::now().time_since_epoch() / std::chrono::seconds(1);
  return c10::str("events.out.tfevents.", seconds, ".", host, ".", ::getpid(), ".0");
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_table();
  uint32_t remainder = ~0u;
  for (const char byte : bytes) {
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~remainder;
}

EventFile::EventFile(const std::string& folder) {
  std::error_code ignored;  // what is wrong shows when the file is opened
  std::filesystem::create_directories(folder, ignored);
  path_ = std::filesystem::path(folder) / file_name();
  file_.open(path_, std::ios::binary);
  write(wall_time() + text_field(3, "brain.Event:2"));
}

void EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += text_field(1, text_field(1, tag) + float_field(2, static_cast<float>(value)));
  }
  write(wall_time() + key(2, kVarint) + varint(static_cast<uint64_t>(step)) + text_field(5, summary));
}

void EventFile::write(std::string_view record) {
  const auto length = little_endian(static_cast<uint64_t>(record.size()));
  file_ << length + little_endian(masked_crc(length)) + std::string(record) + little_endian(masked_crc(record))
        << std::flush;
  TESSERA_CHECK_AS(DataError, file_, "[trace] cannot write \"", path_,
                   "\"; accepted: a folder that may be written to, on a disk with room");
}

}  // namespace tessera::trace
