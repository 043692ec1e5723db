// Checkpoints of ranks that are processes: loaded by others, and whole whenever a rank is killed.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/run.h"
#include "tests/launch/process_ranks.h"

namespace tessera::launch::checkpoint_test {
namespace {

using checkpoint::Contents;
using std::chrono::milliseconds;

constexpr int64_t kTensors = 6;

// At step s every element of a tensor is its place plus s.
at::Tensor value_of(int64_t tensor, int64_t step) {
  return at::arange(64 * (tensor + 1) * 32, at::kFloat).view({64 * (tensor + 1), 32}) + static_cast<double>(step);
}

Contents contents_on(const layout::Mesh& mesh, int64_t step) {
  Contents contents;
  for (int64_t i = 0; i < kTensors; ++i) {
    layout::Placements placements(mesh.ndim());
    placements[i % mesh.ndim()] = layout::Shard(i % 2);
    const auto role = i < 3 ? catalogue::Role::kParameter : catalogue::Role::kMoment;
    contents.tensors.push_back(
        {"tensor " + std::to_string(i), role, dtensor::distribute(value_of(i, step), mesh, placements)});
  }
  return contents;
}

layout::Mesh mesh_of(int64_t ranks) {
  return layout::Mesh::parse(ranks == 4 ? "dp=2,tp=2" : "tp=" + std::to_string(ranks));
}

// Loads on threads; the step that all tensors are of.
int64_t loaded_step(const std::string& folder, int64_t ranks) {
  std::atomic<int64_t> step = -1;
  comm::run_ranks(ranks, [&](int64_t rank) {
    const Contents contents = contents_on(mesh_of(ranks), -1000);
    checkpoint::load_tensors(checkpoint::open_for_ranks(std::make_shared<checkpoint::PosixStore>(), folder), contents);
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto whole = dtensor::full_tensor(contents.tensors[static_cast<size_t>(i)].tensor);
      const auto own = static_cast<int64_t>(whole[0][0].item<float>());
      EXPECT_TRUE(at::equal(whole, value_of(i, own))) << "tensor " << i << " of " << folder;
      if (rank == 0) {
        EXPECT_TRUE(i == 0 || step == own) << "tensors of two steps in " << folder;
        step = own;
      }
    }
  });
  return step;
}

// What a rank that is a process does.
int run_body(const std::string& name) {
  const auto place = find_place();
  const std::string run = std::getenv("TESSERA_TEST_RUN");
  std::ofstream out(std::string(std::getenv("TESSERA_TEST_OUT")) + "/out_" + std::to_string(place->rank));
  const auto store = std::make_shared<checkpoint::PosixStore>();
  try {
    run_job(place->size,
            [&](int64_t) {
              const auto mesh = mesh_of(place->size);
              if (name == "save") {
                checkpoint::save(store, run, 7, contents_on(mesh, 7));
                return;
              }
              for (int64_t step = 1;; ++step) {  // until it is killed
                const Contents contents = contents_on(mesh, step);
                const auto saving = checkpoint::start_save(store, run, step, contents, {.keep = 2, .block_size = 4096});
                for (const auto& kept : contents.tensors) {
                  kept.tensor.add_(0.5);
                }
                out << "step " << step << std::endl;
                saving->finish();
              }
            },
            {.deadline = milliseconds(20000), .intra_op_threads = 1});
  } catch (const std::exception& error) {
    std::cerr << "body: " << base::message_of(error) << std::endl;
    return 1;
  }
  return 0;
}

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

// TESSERA_KILLS: how often.
TEST_F(CheckpointOfProcesses, AreWholeWheneverARankIsKilled) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937_64 random(seed);
  const char* asked = std::getenv("TESSERA_KILLS");
  const int64_t kills = asked != nullptr ? std::stoll(asked) : 6;
  checkpoint::PosixStore store;
  for (int64_t kill = 0; kill < kills; ++kill) {
    std::filesystem::remove_all(run_);
    ProcessRanks ranks(3, "save until killed", {{"TESSERA_TEST_RUN", run_}});
    bool have_saved = false;
    for (int tens = 0; tens < 6 && !have_saved; ++tens) {  // of seconds, on a machine with much else to do
      have_saved = ranks.wait_for("step 3\n");
    }
    ASSERT_TRUE(have_saved) << ranks.errors(0);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    const auto victim = static_cast<int64_t>(random() % 3);
    ranks.signal(victim, SIGKILL);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(30))) << "a rank hangs";
    const auto newest = checkpoint::newest_whole(store, run_);
    ASSERT_TRUE(newest) << "rank " << victim;
    for (const auto& step : checkpoint::list_steps(store, run_)) {
      EXPECT_NE(step.state, checkpoint::StepState::kDamaged) << step.path << ": " << step.reason;
    }
    EXPECT_EQ(loaded_step(newest->path, 2), newest->step);
    EXPECT_GE(newest->step, 2);
  }
}

}  // namespace
}  // namespace tessera::launch::checkpoint_test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--body") {
    return tessera::launch::checkpoint_test::run_body(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
