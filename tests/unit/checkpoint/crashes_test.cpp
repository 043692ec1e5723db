// A loss of power, or a kill, at every call of three saves that each remove the one before: the newest whole checkpoint
// is there, is one step, and the next save works.
#include <cstdlib>
#include <iostream>
#include <set>

#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/rank_files.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::crashes_test {
namespace {

using small_save::differences;
using small_save::kRanks;
using small_save::save_of;
using small_save::write_rank;

constexpr int64_t kSteps[] = {100, 200, 300};
constexpr int64_t kDraws = 40;

// Another store, in which something happens as soon as a file of this name can be read, before it lasts.
class Watched : public Store {
 public:
  Watched(Store& inner, std::string name, std::function<void()> happens)
      : inner_(inner), name_(std::move(name)), happens_(std::move(happens)) {}

  std::unique_ptr<NewFile> create(const std::string& path) override {
    auto file = inner_.create(path);
    return name_of(path) == name_ ? std::make_unique<File>(std::move(file), happens_) : std::move(file);
  }
  std::optional<int64_t> try_size(const std::string& path) override { return inner_.try_size(path); }
  void read(const std::string& path, int64_t begin, void* data, size_t size) override {
    inner_.read(path, begin, data, size);
  }
  Listing list(const std::string& folder) override { return inner_.list(folder); }
  void remove(const std::string& path) override { inner_.remove(path); }
  void make_folder(const std::string& folder) override { inner_.make_folder(folder); }
  void remove_folder(const std::string& folder) override { inner_.remove_folder(folder); }
  void sync_folder(const std::string& folder) override { inner_.sync_folder(folder); }

 private:
  class File : public NewFile {
   public:
    File(std::unique_ptr<NewFile> inner, const std::function<void()>& happens)
        : inner_(std::move(inner)), happens_(happens) {}
    void append(const void* data, size_t size) override {
      inner_->append(data, size);
      happens_();
    }
    void close() override { inner_->close(); }

   private:
    std::unique_ptr<NewFile> inner_;
    const std::function<void()>& happens_;
  };

  Store& inner_;
  const std::string name_;
  const std::function<void()> happens_;
};

// One save, and the removal of those before. The manifest is written as soon as the last receipt can be read: the rank
// that left it has not heard yet that it lasts.
void save_and_prune(Store& store, int64_t step, int64_t& committed) {
  const auto save = save_of(step);
  const auto folder = claim_step(store, "run", {save, "a test"});
  Watched watched(store, receipt_name(kRanks - 1), [&] {
    commit(store, folder, save, kRanks, {{"model", "small"}}, {.deadline = 0});
    committed = step;
    prune(store, "run", {.keep = 1, .writing = {}});
  });
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    write_rank(watched, folder, save, rank);
  }
}

// Three saves; the last step that was committed before the crash, or -1.
int64_t run_until_crash(Store& store) {
  int64_t committed = -1;
  try {
    store.make_folder("run");
    store.sync_folder("");
    for (const auto step : kSteps) {
      save_and_prune(store, step, committed);
    }
  } catch (const SimulatedCrash&) {
  }
  return committed;
}

// What is wrong after the crash; "" if nothing is.
std::string what_is_wrong(MemoryStore& store, int64_t committed) {
  if (committed < 0 && store.paths().empty()) {
    return "";  // nobody was told that anything is there
  }
  for (const auto& found : list_steps(store, "run")) {
    if (found.state == StepState::kDamaged) {
      return found.path + " is damaged: " + found.reason;
    }
  }
  const auto newest = newest_whole(store, "run");
  if (newest ? newest->step < committed : committed >= 0) {
    return "the newest whole one is " + (newest ? newest->path : "none") + ", but " + std::to_string(committed) +
           " was";
  }
  if (newest) {
    if (const auto wrong = differences(store, newest->path); !wrong.empty()) {
      return newest->path + ": " + wrong;
    }
    for (const auto& damage : find_damage(store, newest->path)) {
      if (damage.find(receipt_name(kRanks - 1)) == std::string::npos) {  // which may be lost: see the note in commit.h
        return damage;
      }
    }
  }
  return "";
}

// Whether a job that goes on from here can save.
std::string what_goes_wrong_next(MemoryStore& store, int64_t newest) {
  remove_unfinished(store, "run");
  int64_t committed = -1;
  const int64_t step = newest < 0 ? kSteps[0] : newest + 100;
  save_and_prune(store, step, committed);
  const auto left = list_steps(store, "run");
  if (left.size() != 1 || left[0].step != step || left[0].state != StepState::kWhole) {
    return "after the next save there are " + std::to_string(left.size()) + " folders";
  }
  return differences(store, left[0].path);
}

TEST(Crashes, AtEveryCallLeaveTheNewestWholeCheckpoint) {
  int64_t simulated = 0, calls = 0;
  {
    MemoryStore memory;
    FaultyStore counted(memory, {});
    ASSERT_EQ(run_until_crash(counted), kSteps[2]);
    calls = counted.calls();
  }
  const char* const given = std::getenv("TESSERA_SEED");
  const uint64_t first_seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  for (int64_t call = 0; call < calls; ++call) {
    MemoryStore memory;
    FaultyStore store(memory, {.crash_at = call});
    const auto committed = run_until_crash(store);
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(call * kDraws + draw);
      const auto what = draw == 0 ? Unsynced::kLost : draw == 1 ? Unsynced::kKept : Unsynced::kDrawn;
      const auto left = memory.after_power_loss(what, seed);
      ASSERT_EQ(what_is_wrong(*left, committed), "") << "crash at call " << call << ", seed " << seed;
      if (draw < 6 && left->list("").folders.size() == 1) {
        const auto newest = newest_whole(*left, "run");
        ASSERT_EQ(what_goes_wrong_next(*left, newest ? newest->step : -1), "")
            << "crash at call " << call << ", seed " << seed;
      }
      ++simulated;
    }
  }
  std::cout << simulated << " crashes at " << calls << " calls, seeds from " << first_seed << "\n";
  EXPECT_GE(simulated, 10'000);
}

// What was read of the memory store is what these tests rest on.
TEST(Crashes, AStoreForgetsWhatWasNotSynchronised) {
  MemoryStore store;
  store.make_folder("a");
  store.sync_folder("");
  write_new(store, "a/named", "x");
  store.sync_folder("a");
  write_new(store, "a/unnamed", "x");
  const auto open = store.create("a/open");
  open->append("12345678");
  store.remove("a/named");
  EXPECT_EQ(store.after_power_loss(Unsynced::kLost)->paths(), std::vector<std::string>{"a/named"});
  EXPECT_EQ(store.after_power_loss(Unsynced::kKept)->paths(), (std::vector<std::string>{"a/open", "a/unnamed"}));
  std::set<std::string> contents;
  std::set<std::vector<std::string>> names;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto left = store.after_power_loss(Unsynced::kDrawn, seed);
    names.insert(left->paths());
    if (left->try_size("a/open")) {
      contents.insert(read_all(*left, "a/open"));
    }
  }
  EXPECT_EQ(names.size(), 8u);      // each of three names or not
  EXPECT_EQ(contents.size(), 17u);  // cut after 0 to 8 bytes, or zeros behind 0 to 7 of them
}

}  // namespace
}  // namespace tessera::checkpoint::crashes_test
