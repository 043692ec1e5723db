// A file is there whole or not at all.
#include "tessera/base/atomic_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::base::atomic_file_test {
namespace {

namespace fs = std::filesystem;

class AtomicFiles : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ / "file"; }
  std::string content() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  const fs::path folder_ = fs::temp_directory_path() / ("tessera_atomic_" + std::to_string(::getpid()));
};

TEST_F(AtomicFiles, AnUnfinishedOneLeavesTheEarlierOne) {
  std::ofstream(path()) << "before";
  {
    AtomicFile file(path());
    file.write("half of something else");
    EXPECT_EQ(content(), "before");
  }
  EXPECT_EQ(content(), "before");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFiles, AFinishedOneTakesItsPlace) {
  std::ofstream(path()) << "before";
  AtomicFile file(path());
  file.write("new ");
  file.write("content");
  file.commit();
  EXPECT_EQ(content(), "new content");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFiles, AFolderThatIsNotThereIsNamed) {
  try {
    AtomicFile file(folder_ / "no/file");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(message_of(error).find("[file] cannot write \"" + (folder_ / "no/file").string() + "\": No such file"),
              std::string::npos)
        << message_of(error);
  }
}

}  // namespace
}  // namespace tessera::base::atomic_file_test
