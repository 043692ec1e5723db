#include "tessera/base/page_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::base::page_file_test {
namespace {

constexpr size_t kPage = PageFile::kPage;

PageFile make_file() { return {std::filesystem::temp_directory_path().string(), "test", "numbers"}; }

// A place, and the byte that all of it holds.
struct Held {
  unsigned char* begin;
  size_t bytes;
  unsigned char value;
  bool is_whole() const {
    return std::all_of(begin, begin + bytes, [&](unsigned char each) { return each == value; });
  }
};

TEST(PageFile, PlacesKeepWhatIsWrittenHoweverTheyComeAndGo) {
  const unsigned seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  PageFile file = make_file();
  std::vector<Held> all;
  int64_t bytes = 0;
  for (int step = 0; step < 600; ++step) {
    if (all.size() < 5 || random() % 2 == 0) {
      const size_t size = 1 + random() % (5 * kPage);
      const std::vector<unsigned char> values(size, static_cast<unsigned char>(step));
      const bool is_copy = random() % 2 == 0;
      void* place = file.add(size, is_copy ? values.data() : nullptr);
      all.push_back({static_cast<unsigned char*>(place), size, values[0]});
      if (!is_copy) {
        std::memset(place, values[0], size);
      }
      bytes += static_cast<int64_t>(size);
    } else {
      std::swap(all[random() % all.size()], all.back());
      bytes -= static_cast<int64_t>(all.back().bytes);
      file.remove(all.back().begin);
      all.pop_back();
    }
    if (!all.empty() && random() % 4 == 0) {
      file.release(all[random() % all.size()].begin);
    }
    ASSERT_EQ(file.bytes(), bytes);
    ASSERT_TRUE(std::all_of(all.begin(), all.end(), [](const Held& held) { return held.is_whole(); })) << step;
  }
  file.write_back();
  file.release_all();
  EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](const Held& held) { return held.is_whole(); }));
  for (const Held& held : all) {
    EXPECT_TRUE(file.has(held.begin));
    file.remove(held.begin);
    EXPECT_FALSE(file.has(held.begin));
  }
  EXPECT_EQ(file.bytes(), 0);
}

// So a program that adds and removes for ever does not come to the end of what a file may hold.
TEST(PageFile, RoomThatIsFreeIsUsedAgain) {
  PageFile file = make_file();
  for (int round = 0; round < 200; ++round) {
    std::vector<void*> places;
    for (size_t pages = 1; pages <= 6; ++pages) {
      places.push_back(file.add(pages * kPage));
    }
    for (const size_t i : {3, 0, 5, 1, 4, 2}) {
      file.remove(places[i]);
    }
    ASSERT_EQ(file.size(), 0) << round;
  }
  void* first = file.add(2 * kPage);
  void* second = file.add(kPage);
  file.remove(first);
  void* third = file.add(kPage);
  EXPECT_EQ(file.size(), static_cast<int64_t>(3 * kPage));
  file.remove(second);
  EXPECT_EQ(file.size(), static_cast<int64_t>(kPage));
  file.remove(third);
}

TEST(PageFile, AFolderThatIsNotThereIsNamed) {
  try {
    PageFile("/nowhere", "test", "numbers");
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(message_of(error).find("[test] cannot make a file in \"/nowhere\": No such file"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::base::page_file_test
