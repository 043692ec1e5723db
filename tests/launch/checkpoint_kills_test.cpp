// Ranks that are killed while they save: the newest whole checkpoint is there, is one step, and is loaded by another
// number of ranks. TESSERA_KILLS: how often in known phases; a fifth as often at random moments.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tests/launch/checkpoint_bodies.h"
#include "tests/launch/killing.h"

namespace tessera::launch::checkpoint_test {
namespace {

constexpr int64_t kRanks = 3;
constexpr int64_t kKeep = 2;  // of the body

int64_t kills_asked(int64_t otherwise) {
  const char* asked = std::getenv("TESSERA_KILLS");
  return asked != nullptr ? std::stoll(asked) : otherwise;
}

class KilledRanks : public testing::Test {
 protected:
  KilledRanks()
      : run_(std::filesystem::temp_directory_path() / ("tessera_killed_saves_" + std::to_string(::getpid()))),
        seed_(std::random_device()()),
        random_(seed_) {
    std::cout << "seed " << seed_ << std::endl;
  }
  ~KilledRanks() override {
    std::filesystem::remove_all(run_);
    for (const auto& [phase, count] : kills_) {
      std::cout << count << " kills in " << phase << "\n";
    }
  }

  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

  // What is there after a kill; the step of the newest whole one.
  int64_t expect_whole(int64_t ranks) {
    const auto newest = checkpoint::newest_whole(store_, run_);
    EXPECT_TRUE(newest);
    for (const auto& step : checkpoint::list_steps(store_, run_)) {
      EXPECT_NE(step.state, checkpoint::StepState::kDamaged) << step.path << ": " << step.reason;
    }
    if (!newest) {
      return -1;
    }
    EXPECT_EQ(loaded_step(newest->path, ranks), newest->step);
    checkpoint::remove_unfinished(store_, run_);  // as the next job does
    const auto left = checkpoint::list_steps(store_, run_);
    EXPECT_EQ(left.back().step, newest->step);
    EXPECT_LE(static_cast<int64_t>(left.size()), kKeep + 1);  // removal may not have begun
    return newest->step;
  }

  const std::string run_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  std::map<std::string, int64_t> kills_;
  checkpoint::PosixStore store_;
};

// The calls of a store in a phase, each counted before and after it, as one rank sees them.
int64_t calls_in(Phase phase, int64_t victim) {
  switch (phase) {
    case Phase::kWrite: return 50;
    case Phase::kReceipts: return victim == 0 ? 24 : 10;
    case Phase::kManifest: return 20;
    default: return 30;
  }
}

// The phase, the step and the place that the victim named.
struct Said {
  std::string phase;
  int64_t step = -1;
};

Said said_by(const std::string& errors) {
  const auto at = errors.find("killed in ");
  if (at == std::string::npos) {
    return {};
  }
  const auto phase = at + std::string("killed in ").size(), step = errors.find(" of step ", at);
  return {errors.substr(phase, step - phase), std::stoll(errors.substr(step + std::string(" of step ").size()))};
}

// Killed at a drawn call of each phase in turn; while copies are made, at a drawn moment.
TEST_F(KilledRanks, LeaveAWholeCheckpointWhateverPhaseTheyDieIn) {
  const int64_t kills = kills_asked(5);
  for (int64_t kill = 0; kill < kills; ++kill) {
    std::filesystem::remove_all(run_);
    const Phase phase = kPhases[kill % std::size(kPhases)];
    const bool is_committers = phase == Phase::kManifest || phase == Phase::kRemoval;
    const int64_t victim = is_committers ? 0 : below(kRanks);
    const Order order{.phase = phase,
                      .step = 3 + below(2),
                      .call = below(calls_in(phase, victim)),
                      .delay = std::chrono::microseconds(below(3000))};
    auto variables = variables_of(order, victim);
    variables.emplace_back("TESSERA_TEST_RUN", run_);
    ProcessRanks ranks(kRanks, "save until killed", variables);
    const auto where = std::string(name_of(phase)) + " call " + std::to_string(order.call) + " of rank " +
                       std::to_string(victim) + ", kill " + std::to_string(kill);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(120))) << "a rank hangs: " << where;
    ASSERT_EQ(ranks.code(victim), 128 + SIGKILL) << where << ": " << ranks.errors(victim);
    const auto said = said_by(ranks.errors(victim));
    ASSERT_EQ(said.phase, name_of(phase)) << where;
    ++kills_[said.phase];
    const int64_t newest = expect_whole(below(2) == 0 ? 2 : 4);
    const bool may_be_whole = phase == Phase::kReceipts || phase == Phase::kManifest || phase == Phase::kRemoval;
    EXPECT_LE(newest, may_be_whole ? said.step : said.step - 1) << where;
    EXPECT_GE(newest, phase == Phase::kRemoval ? said.step : said.step - 1) << where;
    if (HasFailure()) {
      return;
    }
  }
}

// In what phase the folder says that a rank was killed from without.
std::string phase_left(checkpoint::Store& store, const std::string& run) {
  const auto steps = checkpoint::list_steps(store, run);
  const auto& last = steps.back();
  if (last.state == checkpoint::StepState::kWhole) {
    const bool is_removing =
        static_cast<int64_t>(steps.size()) > kKeep || steps.front().state == checkpoint::StepState::kUnfinished;
    return is_removing ? "removal" : "between saves";
  }
  int64_t parts = 0, receipts = 0;
  for (const auto& name : store.list(last.path).files) {
    if (name == checkpoint::kManifest || name == "model.safetensors.index.json") {
      return "manifest";
    }
    receipts += checkpoint::try_receipt_rank(name).has_value() ? 1 : 0;
    parts += name.ends_with(".safetensors") ? 1 : 0;
  }
  return receipts > 0 ? "receipts" : parts > 0 ? "write" : "stage";
}

// Killed by another process at a drawn moment.
TEST_F(KilledRanks, LeaveAWholeCheckpointWheneverTheyAreKilled) {
  const int64_t kills = (kills_asked(15) + 4) / 5;
  for (int64_t kill = 0; kill < kills; ++kill) {
    std::filesystem::remove_all(run_);
    ProcessRanks ranks(kRanks, "save until killed", {{"TESSERA_TEST_RUN", run_}});
    bool have_saved = false;
    for (int tens = 0; tens < 6 && !have_saved; ++tens) {  // of seconds, on a machine with much else to do
      have_saved = ranks.wait_for("step 3\n");
    }
    ASSERT_TRUE(have_saved) << ranks.errors(0);
    std::this_thread::sleep_for(std::chrono::microseconds(below(60000)));
    const int64_t victim = below(kRanks);
    ranks.signal(victim, SIGKILL);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(30))) << "a rank hangs";
    ++kills_["what the folder takes for " + phase_left(store_, run_)];
    EXPECT_GE(expect_whole(2), 2) << "rank " << victim;
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace tessera::launch::checkpoint_test
