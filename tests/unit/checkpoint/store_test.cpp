// What a Store promises, of memory and of the file system alike; and how each says what went wrong.
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::store_test {
namespace {

using small_save::error_of;

// A store and a folder of it in which nothing is.
struct Place {
  std::unique_ptr<Store> store;
  std::string folder;
};

class EveryStore : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "memory") {
      place_ = {std::make_unique<MemoryStore>(), "here"};
    } else {
      const auto here = std::filesystem::temp_directory_path() / ("tessera_store_" + std::to_string(::getpid()));
      place_ = {std::make_unique<PosixStore>(), here.string()};
    }
    store().make_folder(place_.folder);
  }
  void TearDown() override {
    if (GetParam() == "posix") {
      std::filesystem::remove_all(place_.folder);
    }
  }

  Store& store() { return *place_.store; }
  std::string at(const std::string& name) const { return path_in(place_.folder, name); }

  // That the attempt fails, and says so with the path and the cause.
  void fails(const std::function<void()>& attempt, const std::string& path, const std::string& cause) {
    const auto said = error_of(attempt);
    EXPECT_NE(said.find("[store] cannot "), std::string::npos) << said;
    EXPECT_NE(said.find(path), std::string::npos) << said;
    EXPECT_NE(said.find(cause), std::string::npos) << said;
    EXPECT_NE(said.find("; accepted: "), std::string::npos) << said;
  }

  Place place_;
};

TEST_P(EveryStore, GivesBackWhatWasWritten) {
  const auto file = store().create(at("a"));
  file->append("0123");
  file->append("");
  file->append("456789");
  file->close();
  store().sync_folder(place_.folder);
  EXPECT_EQ(read_all(store(), at("a")), "0123456789");
  char some[4] = {};
  store().read(at("a"), 3, some, 4);
  EXPECT_EQ(std::string(some, 4), "3456");
  EXPECT_EQ(store().try_size(at("a")), 10);
  EXPECT_EQ(store().try_size(at("b")), std::nullopt);
  EXPECT_EQ(store().try_size(place_.folder), std::nullopt);
  fails([&] { store().read(at("a"), 8, some, 4); }, at("a"), "it ends at byte 10");
  fails([&] { store().read(at("b"), 0, some, 1); }, at("b"), "No such file");
  fails([&] { read_all(store(), at("b")); }, at("b"), "no such file");
}

TEST_P(EveryStore, NeverWritesOverAFile) {
  write_new(store(), at("a"), "first");
  EXPECT_THROW(store().create(at("a")), FileExists);
  fails([&] { store().create(at("a")); }, at("a"), "File exists");
  EXPECT_EQ(read_all(store(), at("a")), "first");
  const auto open = store().create(at("b"));
  EXPECT_THROW(store().create(at("b")), FileExists);  // also while it is being written
}

TEST_P(EveryStore, ListsMakesAndRemoves) {
  store().make_folder(at("folder"));
  store().make_folder(at("folder"));
  write_new(store(), at("folder/inner"), "");
  write_new(store(), at("b"), "1");
  write_new(store(), at("a"), "2");
  const auto found = store().list(place_.folder);
  EXPECT_EQ(found.files, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(found.folders, std::vector<std::string>{"folder"});
  fails([&] { store().remove_folder(at("folder")); }, at("folder"), "not empty");
  fails([&] { store().remove(at("none")); }, at("none"), "No such file");
  fails([&] { store().list(at("none")); }, at("none"), "No such file");
  fails([&] { store().sync_folder(at("none")); }, at("none"), "No such file");
  fails([&] { store().make_folder(at("a")); }, at("a"), "File exists");
  fails([&] { write_new(store(), at("none/x"), ""); }, at("none"), "No such file");
  fails([&] { write_new(store(), at("a/x"), ""); }, at("a"), "Not a directory");
  store().make_folder(at("deep/er/still"));
  EXPECT_EQ(store().list(at("deep/er")).folders, std::vector<std::string>{"still"});
  fails([&] { store().make_folder(at("a/x")); }, at("a"), "");
  store().remove_folder(at("deep/er/still"));
  store().remove_folder(at("deep/er"));
  store().remove_folder(at("deep"));
  store().remove(at("folder/inner"));
  store().remove_folder(at("folder"));
  EXPECT_EQ(store().list(place_.folder).folders.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(, EveryStore, testing::Values("memory", "posix"), [](const auto& each) { return each.param; });

// As on a full disk: the system refuses to let the file grow.
TEST(StoreOfFiles, SaysWhyAFileCannotGrow) {
  const auto path = (std::filesystem::temp_directory_path() / ("tessera_limit_" + std::to_string(::getpid()))).string();
  PosixStore store;
  const auto file = store.create(path);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto said = error_of([&] { file->append(std::string(1500, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(said.find("[store] cannot write to \"" + path + "\": File too large"), std::string::npos) << said;
  store.remove(path);
}

TEST(FaultyStore, DoesWhatItIsTold) {
  MemoryStore memory;
  write_new(memory, "a", "abcd");
  FaultyStore full(memory, {.room = 3});
  EXPECT_NE(error_of([&] { write_new(full, "b", "1234"); }).find("\"b\": No space left"), std::string::npos);
  EXPECT_EQ(read_all(memory, "b"), "123");
  FaultyStore read_only(memory, {.read_only = true});
  EXPECT_NE(error_of([&] { write_new(read_only, "c", ""); }).find("\"c\": Read-only"), std::string::npos);
  EXPECT_NE(error_of([&] { read_only.remove("a"); }).find("\"a\": Read-only"), std::string::npos);
  FaultyStore flipped(memory, {.flipped = {{"a", 9}}});
  EXPECT_EQ(read_all(flipped, "a"), "a`cd");
  FaultyStore cut(memory, {.cut = {{"a", 2}}});
  EXPECT_EQ(read_all(cut, "a"), "ab");
  FaultyStore crashes(memory, {.crash_at = 2});
  const auto file = crashes.create("d");
  file->append("1");
  EXPECT_THROW(file->append("2"), SimulatedCrash);
  EXPECT_THROW(crashes.try_size("a"), SimulatedCrash);
  EXPECT_EQ(read_all(memory, "d"), "12");
  FaultyStore waits(memory, {.crash_at = 1});
  const auto unsynced = waits.create("e");
  EXPECT_THROW(unsynced->close(), SimulatedCrash);
}

}  // namespace
}  // namespace tessera::checkpoint::store_test
