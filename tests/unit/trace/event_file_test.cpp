#include "tessera/trace/event_file.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::trace::event_file_test {
namespace {

TEST(EventFile, Crc32cOfPublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

// The whole of a record but its time, by hand; the test of the program reads files with a reader of its own.
TEST(EventFile, WritesRecords) {
  const auto folder = std::filesystem::temp_directory_path() / ("tessera_events_" + std::to_string(::getpid()));
  EventFile file(folder / "tb");
  file.add(300, {{"loss", 2.5}});
  std::ostringstream text;
  text << std::ifstream(file.path(), std::ios::binary).rdbuf();
  std::filesystem::remove_all(folder);
  const auto all = text.str();
  const auto number = [&](size_t at) {
    uint64_t value;
    std::memcpy(&value, all.data() + at, sizeof value);
    return value;
  };
  const auto first = 16 + number(0);
  ASSERT_EQ(all.substr(12 + 9, number(0) - 9),
            "\x1a\x0d"
            "brain.Event:2");
  ASSERT_EQ(first + 16 + number(first), all.size());
  const std::string value("\x0a\x04loss\x15\x00\x00\x20\x40", 11);
  EXPECT_EQ(all.substr(first + 12 + 9, number(first) - 9),
            "\x10\xac\x02"
            "\x2a\x0d"
            "\x0a\x0b" +
                value);
}

TEST(EventFile, AFolderThatCannotBeMade) { EXPECT_THROW(EventFile("/proc/no/such"), base::DataError); }

}  // namespace
}  // namespace tessera::trace::event_file_test
