// Ranks that die, throw, stay away or run something else: the others say who and where, and end soon. No launcher helps
// them.
#include <csignal>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "tests/launch/bodies.h"
#include "tests/launch/process_ranks.h"
#include "tests/support/sanitized.h"

namespace tessera::launch::failures_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kSeed = 4711;
// From the broken connection, as it is promised.
constexpr milliseconds kSoon{support::kIsSanitized ? 20000 : 2000};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string named(int64_t rank) { return "rank " + std::to_string(rank); }

Variables faulty(const std::string& fault, int64_t culprit, int64_t moment, uint64_t seed) {
  return {{"TESSERA_TEST_FAULT", fault},
          {"TESSERA_TEST_CULPRIT", std::to_string(culprit)},
          {"TESSERA_TEST_MOMENT", std::to_string(moment)},
          {"TESSERA_TEST_SEED", std::to_string(seed)},
          {"TESSERA_TEST_ROUNDS", "40"}};
}

// A job of 2 to 4 ranks and one of them.
struct Trial {
  explicit Trial(uint64_t seed) : random(seed) {
    ranks = static_cast<int64_t>(2 + random() % 3);
    culprit = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
    moment = static_cast<int64_t>(random() % 30);
  }
  std::string str(int trial) const {
    return "seed " + std::to_string(kSeed) + ", trial " + std::to_string(trial) + ": " + named(culprit) + " of " +
           std::to_string(ranks) + " at " + std::to_string(moment);
  }
  std::mt19937_64 random;
  int64_t ranks, culprit, moment;
};

TEST(Kills, OfAnyRankAtAnyMomentAreNamedByTheOthersWithinTwoSeconds) {
  milliseconds longest{0};
  const auto count = variable("TESSERA_KILLS", 5);
  for (int trial = 0; trial < count; ++trial) {
    Trial each(kSeed + static_cast<uint64_t>(trial));
    SCOPED_TRACE(each.str(trial));
    ProcessRanks ranks(each.ranks, "steady", {{"TESSERA_TEST_SEED", std::to_string(trial)}});
    ASSERT_TRUE(ranks.wait_for("started")) << ranks.errors(0);
    std::this_thread::sleep_for(std::chrono::microseconds(each.random() % 100000));
    const auto begin = Clock::now();
    ranks.signal(each.culprit, SIGKILL);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(20))) << "a rank hangs";
    for (int64_t rank = 0; rank < each.ranks; ++rank) {
      if (rank == each.culprit) {
        continue;
      }
      EXPECT_EQ(ranks.code(rank), 1);
      EXPECT_TRUE(has(ranks.errors(rank), named(each.culprit) + " failed: its process (pid ")) << ranks.errors(rank);
      EXPECT_TRUE(has(ranks.errors(rank), named(rank) + " was in a")) << ranks.errors(rank);
      EXPECT_TRUE(has(ranks.errors(rank), " over ")) << ranks.errors(rank);
      longest = std::max(longest, ranks.ended_after(rank, begin));
    }
    EXPECT_LT(longest, kSoon);
  }
  std::printf("%ld kills, the slowest rank ended after %ld ms\n", static_cast<long>(count),
              static_cast<long>(longest.count()));
}

TEST(Kills, DuringTheStartEndWithTheDeadlineAtTheLatest) {
  const auto count = std::max<int64_t>(2, variable("TESSERA_KILLS", 2) / 10);
  int64_t soon = 0, late = 0;
  for (int trial = 0; trial < count; ++trial) {
    Trial each(kSeed + 1000 + static_cast<uint64_t>(trial));
    SCOPED_TRACE(each.str(trial));
    ProcessRanks ranks(each.ranks, "steady", {{"TESSERA_TEST_DEADLINE", "4000"}});
    std::this_thread::sleep_for(milliseconds(each.random() % 2000));
    const auto begin = Clock::now();
    ranks.signal(each.culprit, SIGKILL);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(12))) << "a rank hangs";
    for (int64_t rank = 0; rank < each.ranks; ++rank) {
      EXPECT_EQ(ranks.code(rank), rank == each.culprit ? 128 + SIGKILL : 1) << ranks.errors(rank);
      if (rank == each.culprit) {
        continue;
      }
      // The store goes with rank 0.
      EXPECT_TRUE(has(ranks.errors(rank), named(each.culprit)) ||
                  (each.culprit == 0 && has(ranks.errors(rank), "store")))
          << ranks.errors(rank);
      ++(ranks.ended_after(rank, begin) < kSoon ? soon : late);
    }
  }
  std::printf("%ld kills during the start: %ld ranks ended within 2 s, %ld at the deadline\n", static_cast<long>(count),
              static_cast<long>(soon), static_cast<long>(late));
}

// Whether all of ranks [0, count) have left their addresses in the store.
bool wait_for_addresses(const ProcessRanks& ranks, int64_t count) {
  const auto tcp = c10::make_intrusive<c10d::TCPStore>(
      "127.0.0.1", c10d::TCPStoreOptions{.port = static_cast<uint16_t>(ranks.port()), .waitWorkers = false});
  const auto end = Clock::now() + std::chrono::seconds(20);
  for (int64_t rank = 0; rank < count;) {
    if (tcp->check({"tessera/.0/links/" + std::to_string(rank)})) {
      ++rank;
    } else if (Clock::now() > end) {
      return false;
    } else {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  return true;
}

TEST(Kills, WhileOthersAreStillMissingAreNamedWithinTwoSeconds) {
  for (int64_t culprit = 0; culprit < 3; ++culprit) {
    SCOPED_TRACE(named(culprit));
    ProcessRanks ranks(3, "steady", {{"WORLD_SIZE", "4"}});
    ASSERT_TRUE(wait_for_addresses(ranks, 3));
    const auto begin = Clock::now();
    ranks.signal(culprit, SIGKILL);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(10))) << "a rank hangs";
    for (int64_t rank = 0; rank < 3; ++rank) {
      if (rank == culprit) {
        continue;
      }
      EXPECT_EQ(ranks.code(rank), 1);
      EXPECT_TRUE(has(ranks.errors(rank), named(culprit) + " failed: its process (pid ")) << ranks.errors(rank);
      EXPECT_LT(ranks.ended_after(rank, begin), kSoon);
    }
  }
}

TEST(Kills, ReachRanksThatAreInNoCollective) {
  ProcessRanks ranks(3, "compute");
  ASSERT_TRUE(ranks.wait_for("started"));
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Clock::now();
  ranks.signal(1, SIGKILL);
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(10)));
  for (const int64_t rank : {0, 2}) {
    EXPECT_EQ(ranks.code(rank), 1);
    EXPECT_TRUE(has(ranks.errors(rank), "when rank 1 failed: its process")) << ranks.errors(rank);
    EXPECT_LT(ranks.ended_after(rank, begin), kSoon);
  }
  EXPECT_TRUE(has(ranks.errors(2), "rank 2 was in no collective")) << ranks.errors(2);
}

TEST(Exceptions, OnAnyRankAtAnyMomentReachAll) {
  for (int trial = 0; trial < variable("TESSERA_THROWS", 3); ++trial) {
    const Trial each(kSeed + 2000 + static_cast<uint64_t>(trial));
    SCOPED_TRACE(each.str(trial));
    ProcessRanks ranks(each.ranks, "steady", faulty("throw", each.culprit, each.moment, static_cast<uint64_t>(trial)));
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(15))) << "a rank hangs";
    for (int64_t rank = 0; rank < each.ranks; ++rank) {
      EXPECT_EQ(ranks.code(rank), 1);
      const auto says =
          (rank == each.culprit ? "body: " + named(rank) + ": " : "when " + named(each.culprit) + " failed: ") +
          "the reader found 3 columns\n";
      EXPECT_TRUE(has(ranks.errors(rank), says)) << ranks.errors(rank);
    }
  }
}

TEST(Divergence, OfEveryKindIsNamedWithBothOps) {
  const char* const kFaults[] = {"extra", "shape", "kind", "end"};
  for (int trial = 0; trial < variable("TESSERA_DIVERGENCES", 4); ++trial) {
    const Trial each(kSeed + 3000 + static_cast<uint64_t>(trial));
    const std::string fault = kFaults[trial % 4];
    SCOPED_TRACE(each.str(trial) + " " + fault);
    ProcessRanks ranks(each.ranks, "steady", faulty(fault, each.culprit, each.moment, static_cast<uint64_t>(trial)));
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(15))) << "a rank hangs";
    for (int64_t rank = 0; rank < each.ranks; ++rank) {
      const auto text = ranks.errors(rank);
      EXPECT_EQ(ranks.code(rank), 1);
      if (fault == "end") {
        EXPECT_TRUE(has(text, named(each.culprit) + " has finished; rank ")) << text;
        EXPECT_TRUE(rank == each.culprit || has(text, " for op aten::")) << text;
      } else {
        EXPECT_TRUE(has(text, "run different programs: rank ")) << text;
        EXPECT_TRUE(has(text, named(each.culprit) + " calls ")) << text;
      }
      if (fault == "extra") {
        EXPECT_TRUE(has(text, named(each.culprit) + " ran aten::extra")) << text;
        EXPECT_TRUE(has(text, "they parted at op " + std::to_string(each.moment) + ": ")) << text;
      }
    }
  }
}

TEST(Slowness, IsNamedAfterTheWarningTimeAndForgiven) {
  for (int trial = 0; trial < variable("TESSERA_SLOW", 1); ++trial) {
    const Trial each(kSeed + 4000 + static_cast<uint64_t>(trial));
    SCOPED_TRACE(each.str(trial));
    auto variables = faulty("sleep", each.culprit, each.moment, static_cast<uint64_t>(trial));
    variables.insert(variables.end(), {{"TESSERA_TEST_SLEEP", "1200"}, {"TESSERA_TEST_WARN", "500"}});
    ProcessRanks ranks(each.ranks, "steady", variables);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(15))) << "a rank hangs";
    bool is_named = false;
    for (int64_t rank = 0; rank < each.ranks; ++rank) {
      EXPECT_EQ(ranks.code(rank), 0) << ranks.errors(rank);
      is_named |= has(ranks.errors(rank), named(rank) + " has waited 0.5") &&
                  has(ranks.errors(rank), named(each.culprit) + " (in no collective)");
    }
    EXPECT_TRUE(is_named);
  }
}

TEST(Slowness, BeyondTheDeadlineIsAnError) {
  auto variables = faulty("sleep", 1, 5, 1);
  variables.insert(variables.end(), {{"TESSERA_TEST_SLEEP", "60000"}, {"TESSERA_TEST_DEADLINE", "1500"}});
  ProcessRanks ranks(3, "steady", variables);
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(15))) << "a rank hangs";
  for (int64_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.code(rank), 1);
    EXPECT_TRUE(has(ranks.errors(rank), "waited 1500 ms in ")) << ranks.errors(rank);
    EXPECT_TRUE(has(ranks.errors(rank), "rank 1 (in no collective)")) << ranks.errors(rank);
  }
}

TEST(Signals, ToOneRankStopAll) {
  for (const int signal : {SIGINT, SIGTERM}) {
    ProcessRanks ranks(3, "steady");
    ASSERT_TRUE(ranks.wait_for("started"));
    const auto begin = Clock::now();
    ranks.signal(2, signal);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(10)));
    for (int64_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks.code(rank), 130) << ranks.errors(rank);
      EXPECT_LT(ranks.ended_after(rank, begin), kSoon);
    }
  }
}

TEST(Start, MissingRanksAreNamed) {
  ProcessRanks ranks(2, "steady", {{"WORLD_SIZE", "4"}, {"TESSERA_TEST_DEADLINE", "1500"}});
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(10)));
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.code(rank), 1);
    EXPECT_TRUE(has(ranks.errors(rank), "ranks 2, 3 of 4 did not come within 1500 ms") ||
                (rank == 1 && has(ranks.errors(rank), "store")))
        << ranks.errors(rank);
  }
}

}  // namespace
}  // namespace tessera::launch::failures_test
