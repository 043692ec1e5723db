#include "tessera/base/read_file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera::base::read_file_test {
namespace {

TEST(ReadFile, GivesAllBytesOrNothing) {
  const auto path = std::filesystem::temp_directory_path() / ("tessera_read_file_" + std::to_string(::getpid()));
  const std::string whole_parts(2 * 65536, 'x'), lines = std::string("a\r\n\0b\n", 7);
  for (const std::string& content : {std::string(), lines, whole_parts, whole_parts + lines}) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(try_read_file(path), content) << content.size();
  }
  std::filesystem::remove(path);
  EXPECT_EQ(try_read_file(path), std::nullopt);
  EXPECT_EQ(try_read_file(std::filesystem::temp_directory_path()), std::nullopt);
}

}  // namespace
}  // namespace tessera::base::read_file_test
