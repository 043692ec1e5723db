// Ranks as processes compute what ranks as threads compute, bit for bit.
#include <sstream>

#include <gtest/gtest.h>

#include "tessera/comm/run_ranks.h"
#include "tests/launch/bodies.h"
#include "tests/launch/process_ranks.h"

namespace tessera::launch {
namespace {

std::vector<std::string> on_threads(int64_t ranks, const std::string& body) {
  std::vector<std::ostringstream> outs(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](int64_t rank) { bodies().at(body)(rank, outs[static_cast<size_t>(rank)]); }, {.intra_op_threads = 1});
  std::vector<std::string> texts;
  for (const auto& out : outs) texts.push_back(out.str());
  return texts;
}

class Processes : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Processes, HaveTheBitsOfThreads) {
  const auto& [body, ranks] = GetParam();
  const auto expected = on_threads(ranks, body);
  ProcessRanks processes(ranks, body);
  ASSERT_TRUE(processes.wait(std::chrono::seconds(60)));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(processes.code(rank), 0) << processes.errors(rank);
    EXPECT_GT(expected[static_cast<size_t>(rank)].size(), 20u);
    EXPECT_EQ(processes.output(rank), expected[static_cast<size_t>(rank)]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Processes, testing::Combine(testing::Values("collectives", "groups", "messages", "merges"), testing::Values(2, 3, 4)),
                         [](const auto& info) { return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)); });

TEST(Processes, OneIsAWorldOfItsOwn) {
  ProcessRanks processes(1, "collectives");
  ASSERT_TRUE(processes.wait(std::chrono::seconds(60)));
  EXPECT_EQ(processes.code(0), 0) << processes.errors(0);
  EXPECT_EQ(processes.output(0), on_threads(1, "collectives")[0]);
}

}  // namespace
}  // namespace tessera::launch
