// Ranks that are processes with one GPU between them, over NCCL: what every collective gives, and how they fail
// together.
#include <csignal>

#include <gtest/gtest.h>

#include "tests/launch/process_ranks.h"

namespace tessera::launch::nccl_test {
namespace {

constexpr auto kHang = std::chrono::seconds(240);

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Ranks : public testing::TestWithParam<int64_t> {};

TEST_P(Ranks, GiveWhatTheTableSays) {
  ProcessRanks processes(GetParam(), "table");
  ASSERT_TRUE(processes.wait(kHang)) << processes.errors(0);
  for (int64_t rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(processes.code(rank), 0) << processes.errors(rank);
    EXPECT_TRUE(has(processes.output(rank), "AllToAll of ComplexDouble[40013]")) << processes.errors(rank);
  }
}

TEST_P(Ranks, ComputeLayersAsOneDevice) {
  ProcessRanks processes(GetParam(), "layers");
  ASSERT_TRUE(processes.wait(kHang)) << processes.errors(0);
  for (int64_t rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(processes.code(rank), 0) << processes.errors(rank);
    EXPECT_EQ(processes.output(rank), "loss\ngradient of x\ngradient of up\ngradient of down\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Nccl, Ranks, testing::Values(1, 2, 3), testing::PrintToStringParamName());

TEST(Failures, AKilledRankIsNamed) {
  ProcessRanks processes(3, "circle");
  ASSERT_TRUE(processes.wait_for("started")) << processes.errors(0);
  processes.signal(1, SIGKILL);
  ASSERT_TRUE(processes.wait(kHang)) << processes.errors(0);
  for (const int64_t rank : {0, 2}) {
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(processes.errors(rank), "rank 1")) << processes.errors(rank);
  }
}

TEST(Failures, ADeviceThatIsLateIsToldOnEveryRank) {
  ProcessRanks processes(2, "busy", {{"TESSERA_TEST_DEADLINE", "3000"}});
  ASSERT_TRUE(processes.wait(kHang)) << processes.errors(0);
  for (const int64_t rank : {0, 1}) {
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(processes.errors(rank), "for its device in all_reduce(sum) of Float[1000]"))
        << processes.errors(rank);
  }
}

TEST(Failures, DivergentCallsAreToldBeforeTheyReachTheDevice) {
  ProcessRanks processes(2, "divergent");
  ASSERT_TRUE(processes.wait(kHang)) << processes.errors(0);
  for (const int64_t rank : {0, 1}) {
    EXPECT_EQ(processes.code(rank), 1);
    EXPECT_TRUE(has(processes.errors(rank), "Float[9]") && has(processes.errors(rank), "Float[8]"))
        << processes.errors(rank);
  }
}

}  // namespace
}  // namespace tessera::launch::nccl_test
