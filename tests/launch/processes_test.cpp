// Ranks as processes compute what the table of collectives says and what ranks as threads compute, bit for bit.
#include <csignal>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tests/launch/bodies.h"
#include "tests/launch/process_ranks.h"
#include "tests/support/sampled.h"

namespace tessera::launch::processes_test {
namespace {

constexpr auto kHang = std::chrono::seconds(600);  // far above what a slow, busy machine needs

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> on_threads(int64_t ranks, const std::string& body) {
  std::vector<std::ostringstream> outs(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](int64_t rank) { bodies().at(body)(rank, outs[static_cast<size_t>(rank)]); },
                  {.intra_op_threads = 1});
  std::vector<std::string> texts;
  for (const auto& out : outs) {
    texts.push_back(out.str());
  }
  return texts;
}

using Cell = std::tuple<std::string, int>;

// Each body with as many ranks as are drawn, whose number the tests' names say.
std::vector<Cell> cells() {
  std::vector<Cell> result;
  for (const auto* body : {"collectives", "groups", "large", "messages", "letters", "merges"}) {
    for (const int ranks : support::sampled(std::vector<int>{2, 3, 4}, 1, body)) {
      result.emplace_back(body, ranks);
    }
  }
  return result;
}

class Processes : public testing::TestWithParam<Cell> {};

TEST_P(Processes, HaveTheBitsOfThreads) {
  const auto& [body, ranks] = GetParam();
  const auto expected = on_threads(ranks, body);
  ProcessRanks processes(ranks, body);
  ASSERT_TRUE(processes.wait(kHang));
  if (has(processes.errors(0), "without Gloo")) {
    GTEST_SKIP() << processes.errors(0);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(processes.code(rank), 0) << processes.errors(rank);
    EXPECT_GT(expected[static_cast<size_t>(rank)].size(), 20u);
    EXPECT_EQ(processes.output(rank), expected[static_cast<size_t>(rank)]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Processes, testing::ValuesIn(cells()), [](const auto& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
});

TEST(Processes, OneIsAWorldOfItsOwn) {
  ProcessRanks processes(1, "collectives");
  ASSERT_TRUE(processes.wait(kHang));
  EXPECT_EQ(processes.code(0), 0) << processes.errors(0);
  EXPECT_EQ(processes.output(0), on_threads(1, "collectives")[0]);
}

TEST(Circle, EndsWithTheNameOfTheRankThatWasKilled) {
  ProcessRanks processes(3, "circle");
  ASSERT_TRUE(processes.wait_for("started")) << processes.errors(0);
  const auto begin = std::chrono::steady_clock::now();
  processes.signal(1, SIGKILL);
  ASSERT_TRUE(processes.wait(std::chrono::seconds(20))) << "a rank hangs";
  for (const int64_t rank : {0, 2}) {
    const auto text = processes.errors(rank);
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(text, "rank " + std::to_string(rank) + " was in ")) << text;
    EXPECT_TRUE(has(text, "when rank 1 failed: its process (pid ")) << text;
    EXPECT_LT(processes.ended_after(rank, begin), std::chrono::seconds(2));
  }
}

TEST(Circle, NamesTheRankThatSendsOtherSizes) {
  ProcessRanks processes(3, "circle", {{"TESSERA_TEST_CULPRIT", "1"}, {"TESSERA_TEST_MOMENT", "3"}});
  ASSERT_TRUE(processes.wait(std::chrono::seconds(20))) << "a rank hangs";
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto text = processes.errors(rank);
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(text, "Float[2, 50]")) << text;
    EXPECT_TRUE(has(text, "Float[3, 50]")) << text;
  }
}

// Through shared memory, and over messages alone.
class Merging : public testing::TestWithParam<const char*> {};

TEST_P(Merging, EndsWithTheNameOfTheRankThatWasKilled) {
  ProcessRanks processes(3, "merging", {{"TESSERA_TEST_WORLD", GetParam()}});
  ASSERT_TRUE(processes.wait_for("started")) << processes.errors(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto begin = std::chrono::steady_clock::now();
  processes.signal(1, SIGKILL);
  ASSERT_TRUE(processes.wait(std::chrono::seconds(20))) << "a rank hangs";
  for (const int64_t rank : {0, 2}) {
    const auto text = processes.errors(rank);
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(text, "rank " + std::to_string(rank) +
                              " was in merge to [0,3) of [0,1) | [1,2) | [2,3), Float[1048576] over world"))
        << text;
    EXPECT_TRUE(has(text, "when rank 1 failed: its process (pid ")) << text;
    EXPECT_LT(processes.ended_after(rank, begin), std::chrono::seconds(2));
  }
}

TEST_P(Merging, NamesTheRankThatMergesSomethingElse) {
  ProcessRanks processes(
      3, "merging", {{"TESSERA_TEST_WORLD", GetParam()}, {"TESSERA_TEST_CULPRIT", "1"}, {"TESSERA_TEST_MOMENT", "3"}});
  ASSERT_TRUE(processes.wait(std::chrono::seconds(20))) << "a rank hangs";
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto text = processes.errors(rank);
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(text, "run different programs: rank ")) << text;
    EXPECT_TRUE(has(text, "rank 1 calls merge to [0,5) of [0,1) | [1,2) | [2,3), Float[1048576] over world")) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Merging, testing::Values("0", "1"),
                         [](const auto& info) { return *info.param == '0' ? "BySharedMemory" : "ByMessages"; });

}  // namespace
}  // namespace tessera::launch::processes_test
