// Folders of checkpoints: who may write, who is waited for, what goes, and what stands after an error.
#include <cstdlib>
#include <filesystem>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/rank_files.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::folder_test {
namespace {

using small_save::differences;
using small_save::error_of;
using small_save::kRanks;
using small_save::save;
using small_save::save_of;
using small_save::write_rank;

std::vector<std::pair<int64_t, StepState>> states(Store& store) {
  std::vector<std::pair<int64_t, StepState>> all;
  for (const auto& found : list_steps(store, "run")) {
    all.emplace_back(found.step, found.state);
  }
  return all;
}

std::map<std::string, std::string> contents(MemoryStore& store) {
  std::map<std::string, std::string> all;
  for (const auto& path : store.paths()) {
    all[path] = read_all(store, path);
  }
  return all;
}

TEST(FolderNames, AreReadBackExactly) {
  EXPECT_EQ(step_folder("run", 100), "run/step_000100");
  EXPECT_EQ(model_part_name(0, 4), "model-00001-of-00004.safetensors");
  EXPECT_EQ(state_part_name(3), "state-00003.safetensors");
  for (const int64_t number : {0, 7, 99'999, 100'000, 12'345'678}) {
    EXPECT_EQ(try_step_of(step_folder("", number)), number);
    EXPECT_EQ(try_receipt_rank(receipt_name(number)), number);
  }
  for (const char* name : {"step_100", "step_-00001", "step_0000100", "step_000100x", "step_", "manifest.json", ""}) {
    EXPECT_EQ(try_step_of(name), std::nullopt) << name;
    EXPECT_EQ(try_receipt_rank(name), std::nullopt) << name;
  }
}

TEST(Folder, ASaveComesBack) {
  MemoryStore store;
  store.make_folder("run");
  EXPECT_EQ(newest_whole(store, "run"), std::nullopt);
  save(store, "run", save_of(100));
  EXPECT_EQ(differences(store, "run/step_000100"), "");
  save(store, "run", save_of(200));
  EXPECT_EQ(newest_whole(store, "run")->step, 200);
  int64_t read = 0;
  EXPECT_EQ(find_damage(store, "run/step_000200", {.progress = [&](int64_t bytes) { read += bytes; }}),
            std::vector<std::string>{});
  int64_t bytes = 0;
  for (const auto& [path, content] : contents(store)) {
    bytes += path.starts_with("run/step_000200/") ? static_cast<int64_t>(content.size()) : 0;
  }
  EXPECT_EQ(read, bytes);  // each byte once
}

TEST(Folder, OfAStepOrOfARunIsFound) {
  const auto store = std::make_shared<MemoryStore>();
  store->make_folder("whole");
  const std::string run = "whole/checkpoints";
  store->make_folder(run);
  EXPECT_NE(error_of([&] { find_checkpoint(*store, run); }).find("has no whole checkpoint"), std::string::npos);
  EXPECT_NE(error_of([&] { find_checkpoint(*store, "none"); }).find("none"), std::string::npos);
  for (const int64_t step : {100, 200, 300}) {
    save(*store, run, save_of(step));
  }
  store->damage(run + "/step_000300/state-00001.safetensors", "");
  for (const char* path : {"whole/checkpoints", "whole/checkpoints/", "whole"}) {
    EXPECT_EQ(find_checkpoint(*store, path), run + "/step_000200") << path;  // the newest whole one
  }
  for (const auto& path : {run + "/step_000100", run + "/step_000100/"}) {
    EXPECT_EQ(find_checkpoint(*store, path), run + "/step_000100") << path;
  }
  const auto refusal = [&](const std::string& step) {
    return error_of([&] { open_checkpoint(*store, find_checkpoint(*store, run + step)); });
  };
  EXPECT_NE(refusal("/step_000300").find("state-00001.safetensors"), std::string::npos);
  EXPECT_NE(refusal("/step_000400").find("manifest.json"), std::string::npos);
}

TEST(Folder, IsClaimedByOne) {
  MemoryStore store;
  store.make_folder("run");
  const auto folder = claim_step(store, "run", {save_of(100, 0xabc), "host a, process 7"});
  const auto before = contents(store);
  const auto said = error_of([&] { claim_step(store, "run", {save_of(100, 0xdef), "host b"}); });
  EXPECT_NE(said.find("cannot save step 100 to \"run/step_000100\""), std::string::npos) << said;
  EXPECT_NE(said.find("is claimed by save 0000000000000b20 of host a, process 7, which is under way or was killed"),
            std::string::npos)
      << said;
  EXPECT_EQ(contents(store), before);
  // A job that does not ask finds every file taken.
  write_rank(store, folder, save_of(100, 0xabc), 0);
  const auto written = contents(store);
  EXPECT_NE(error_of([&] { write_rank(store, folder, save_of(100, 0xdef), 0); }).find("File exists"),
            std::string::npos);
  EXPECT_EQ(contents(store), written);
  store.damage("run/step_000100/claim.json", "{");
  EXPECT_NE(error_of([&] { claim_step(store, "run", {save_of(100), "host b"}); }).find("did not come to say who it is"),
            std::string::npos);
}

TEST(Commit, WaitsForEveryReceipt) {
  MemoryStore store;
  store.make_folder("run");
  const auto folder = claim_step(store, "run", {save_of(100), "a test"});
  write_rank(store, folder, save_of(100), 1);
  const auto said = error_of([&] { commit(store, folder, save_of(100), kRanks, {}, {.deadline = 0}); });
  EXPECT_NE(said.find("the receipts of 2 of 3 ranks are missing: 0, 2"), std::string::npos) << said;
  EXPECT_EQ(store.try_size(path_in(folder, kManifest)), std::nullopt);
  // The others come while it waits, one of them by halves.
  int64_t waits = 0;
  std::unique_ptr<NewFile> half;
  std::string rest;
  const auto come = [&](double) {
    if (++waits == 1) {
      write_rank(store, folder, save_of(100), 2);
      const auto path = path_in(folder, receipt_name(2));
      rest = read_all(store, path);
      store.remove(path);
      half = store.create(path);
      half->append(rest.substr(0, rest.size() / 2));
    } else if (waits == 2) {
      write_rank(store, folder, save_of(100), 0);
    } else if (waits == 3) {
      half->append(rest.substr(rest.size() / 2));
    }
  };
  commit(store, folder, save_of(100), kRanks, {{"model", "small"}}, {.deadline = 60, .sleep = come});
  EXPECT_EQ(waits, 3);
  EXPECT_EQ(differences(store, folder), "");
}

TEST(Commit, TakesNoReceiptOfAnotherSave) {
  MemoryStore store;
  store.make_folder("run");
  const auto folder = claim_step(store, "run", {save_of(100), "a test"});
  write_rank(store, folder, save_of(100), 0);
  write_rank(store, folder, save_of(100), 1);
  write_rank(store, folder, save_of(100, 0x7777), 2);
  const auto said = error_of([&] { commit(store, folder, save_of(100), kRanks, {}, {.deadline = 0}); });
  EXPECT_NE(said.find("receipt-00002.json\" is of save 00000000000077db of step 100, this is save 0000000000001298"),
            std::string::npos)
      << said;
  EXPECT_EQ(store.try_size(path_in(folder, kManifest)), std::nullopt);
}

TEST(Commit, RefusesSlicesThatAreMissingOrTwice) {
  for (const bool is_missing : {true, false}) {
    MemoryStore store;
    store.make_folder("run");
    const auto folder = claim_step(store, "run", {save_of(100), "a test"});
    for (int64_t rank = 0; rank < 2; ++rank) {
      RankFiles files(store, folder, save_of(100), rank);
      const Box box = rank == 0 || !is_missing ? Box{{0, 2}} : Box{{2, 3}};
      files.write_part(state_part_name(rank), {{"x", {4}, box, at::zeros({box[0].size()})}});
      files.leave_receipt();
    }
    const auto said = error_of([&] { commit(store, folder, save_of(100), 2, {}, {.deadline = 0}); });
    EXPECT_NE(said.find(is_missing ? "x[3:4] was written by no rank" : "x[0:2] is there twice"), std::string::npos)
        << said;
    EXPECT_EQ(store.try_size(path_in(folder, kManifest)), std::nullopt);
  }
}

TEST(Prune, KeepsTheNewestWholeOnes) {
  MemoryStore store;
  store.make_folder("run");
  for (const int64_t step : {100, 200, 300, 400}) {
    save(store, "run", save_of(step));
  }
  claim_step(store, "run", {save_of(150), "killed"});
  claim_step(store, "run", {save_of(250), "writes still"});
  claim_step(store, "run", {save_of(500), "writes now"});
  store.damage("run/step_000300/state-00001.safetensors", "");
  using enum StepState;
  using States = std::vector<std::pair<int64_t, StepState>>;
  EXPECT_EQ(states(store), (States{{100, kWhole},
                                   {150, kUnfinished},
                                   {200, kWhole},
                                   {250, kUnfinished},
                                   {300, kDamaged},
                                   {400, kWhole},
                                   {500, kUnfinished}}));
  EXPECT_EQ(prune(store, "run", {.keep = 2, .writing = 250}),
            (std::vector<std::string>{"run/step_000150", "run/step_000100"}));
  EXPECT_EQ(states(store),
            (States{{200, kWhole}, {250, kUnfinished}, {300, kDamaged}, {400, kWhole}, {500, kUnfinished}}));
  EXPECT_THROW(prune(store, "run", {.keep = 0}), c10::Error);
  prune(store, "run", {.keep = 1});
  EXPECT_EQ(states(store), (States{{400, kWhole}, {500, kUnfinished}}));
  EXPECT_EQ(remove_unfinished(store, "run"), std::vector<std::string>{"run/step_000500"});
  EXPECT_EQ(states(store), (States{{400, kWhole}}));
  store.damage("run/step_000400/state-00001.safetensors", "");
  claim_step(store, "run", {save_of(50), "killed"});
  EXPECT_EQ(prune(store, "run", {.keep = 1}), std::vector<std::string>{});  // none is whole: nothing goes
}

// The disk is full after any number of bytes of a second save, or cannot be written to at all: an error that names the
// file, and the first checkpoint as it was.
TEST(FailedSaves, LeaveTheOlderCheckpointAsItWas) {
  MemoryStore memory;
  memory.make_folder("run");
  save(memory, "run", save_of(100));
  const auto before = contents(memory);
  int64_t needed = 0;
  {
    MemoryStore other;
    other.make_folder("run");
    save(other, "run", save_of(200));
    for (const auto& [path, content] : contents(other)) {
      needed += static_cast<int64_t>(content.size());
    }
  }
  for (int64_t room = -1; room < needed; room += room < 40 ? 1 : 13) {
    FaultyStore store(memory, room < 0 ? Faults{.read_only = true} : Faults{.room = room});
    const auto said = error_of([&] { save(store, "run", save_of(200)); });
    ASSERT_NE(said.find(room < 0 ? "Read-only" : "No space left"), std::string::npos) << room << ": " << said;
    ASSERT_NE(said.find("\"run/step_000200"), std::string::npos) << said;
    ASSERT_EQ(newest_whole(memory, "run")->step, 100) << room;
    ASSERT_EQ(differences(memory, "run/step_000100"), "");
    remove_unfinished(memory, "run");
    ASSERT_EQ(contents(memory), before) << room;
  }
  FaultyStore fits(memory, {.room = needed});
  save(fits, "run", save_of(200));
  EXPECT_EQ(newest_whole(memory, "run")->step, 200);
}

class OnDisk : public testing::Test {
 protected:
  void SetUp() override {
    run_ = (std::filesystem::temp_directory_path() / ("tessera_folder_" + std::to_string(::getpid()))).string();
    std::filesystem::create_directories(run_);
  }
  void TearDown() override { std::filesystem::remove_all(run_); }

  PosixStore store_;
  std::string run_;
};

TEST_F(OnDisk, TheSameProtocol) {
  for (const int64_t step : {100, 200, 300}) {
    save(store_, run_, save_of(step));
    prune(store_, run_, {.keep = 2});
  }
  EXPECT_EQ(list_steps(store_, run_).size(), 2u);
  EXPECT_EQ(newest_whole(store_, run_)->step, 300);
  EXPECT_EQ(differences(store_, step_folder(run_, 300)), "");
  verify_checkpoint(store_, step_folder(run_, 300));
  const auto refusal = [&] { return error_of([&] { claim_step(store_, run_, {save_of(300), "host b"}); }); };
  EXPECT_NE(refusal().find("that step is saved there already"), std::string::npos) << refusal();
  const auto part = path_in(step_folder(run_, 300), state_part_name(1));
  std::filesystem::resize_file(part, std::filesystem::file_size(part) - 1);
  EXPECT_EQ(newest_whole(store_, run_)->step, 200);
  EXPECT_NE(refusal().find("a checkpoint that is damaged lies there ([checkpoint] \"" + part), std::string::npos)
      << refusal();
  EXPECT_NE(error_of([&] { verify_checkpoint(store_, step_folder(run_, 300)); }).find(part), std::string::npos);
}

// A run that is no folder, and a step that is a file: also for who may write everywhere.
TEST_F(OnDisk, WhereNoFolderCanBeIsSaid) {
  const auto file = path_in(run_, "file");
  write_new(store_, file, "");
  EXPECT_NE(error_of([&] { save(store_, file, save_of(100)); }).find("\"" + file + "/step_000100\": Not a directory"),
            std::string::npos);
  write_new(store_, step_folder(run_, 100), "");
  EXPECT_NE(error_of([&] { save(store_, run_, save_of(100)); }).find("step_000100\": File exists"), std::string::npos);
  EXPECT_EQ(newest_whole(store_, run_), std::nullopt);
}

// For reference_test.py, which names the folder.
TEST(Reference, WritesACheckpoint) {
  const char* const folder = std::getenv("TESSERA_CHECKPOINT");
  if (folder == nullptr) {
    GTEST_SKIP() << "TESSERA_CHECKPOINT names no folder";
  }
  PosixStore store;
  save(store, folder, save_of(100));
}

}  // namespace
}  // namespace tessera::checkpoint::folder_test
