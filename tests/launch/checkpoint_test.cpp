// Checkpoints of ranks that are processes: loaded by others, and within memory.
#include <filesystem>
#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tests/launch/checkpoint_bodies.h"
#include "tests/launch/process_ranks.h"
#include "tests/support/sanitized.h"

namespace tessera::launch::checkpoint_test {
namespace {

class CheckpointOfProcesses : public testing::Test {
 protected:
  CheckpointOfProcesses()
      : run_(std::filesystem::temp_directory_path() / ("tessera_process_checkpoints_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(run_);
  }
  ~CheckpointOfProcesses() override { std::filesystem::remove_all(run_); }

  std::string run_;
};

TEST_F(CheckpointOfProcesses, IsLoadedByOthers) {
  ProcessRanks ranks(4, "save", {{"TESSERA_TEST_RUN", run_}});
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(60))) << "a rank hangs";
  for (int64_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(ranks.code(rank), 0) << ranks.errors(rank);
  }
  checkpoint::PosixStore store;
  const auto newest = checkpoint::newest_whole(store, run_);
  ASSERT_TRUE(newest);
  checkpoint::verify_checkpoint(store, newest->path);
  EXPECT_EQ(loaded_step(newest->path, 3), 7);
}

// Of 160 MiB a rank holds its copy of what it writes while that is written, and beside it little; where it waits for
// the files, little alone; while it loads, what it is to hold twice.
TEST_F(CheckpointOfProcesses, TakesLittleMemoryBesideTheCopy) {
  if (support::kIsSanitized) {
    GTEST_SKIP() << "what sanitizers note of memory is memory too";
  }
  constexpr int64_t kMost = int64_t{64} << 20;
  for (const int64_t size : {2, 4}) {
    std::filesystem::remove_all(run_);
    // Otherwise malloc keeps up to 64 MiB of what was freed, which would hide what is held.
    ProcessRanks ranks(size, "memory", {{"TESSERA_TEST_RUN", run_}, {"MALLOC_MMAP_THRESHOLD_", "1048576"}});
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(120))) << "a rank hangs";
    for (int64_t rank = 0; rank < size; ++rank) {
      ASSERT_EQ(ranks.code(rank), 0) << ranks.errors(rank);
      std::istringstream lines(ranks.output(rank));
      int64_t copied = 0, beside = 0, count = 0;
      for (std::string what; lines >> what >> copied >> beside; ++count) {
        std::cout << "rank " << rank << " of " << size << ", " << what << ": " << (copied >> 20) << " MiB and "
                  << (beside >> 20) << " beside\n";
        EXPECT_LE(beside, kMost) << what << " at rank " << rank << " of " << size;
        EXPECT_GE(copied, 0);
      }
      EXPECT_EQ(count, 4);
    }
  }
}

}  // namespace
}  // namespace tessera::launch::checkpoint_test
