// The steps of a merge write the tree, and what it sends is counted.
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/sums/merge_bytes.h"
#include "tessera/sums/node_plan.h"

namespace tessera::sums::merge_plan_test {
namespace {

// The tree over leaves as text: `((0+1)+2)`.
std::string text_of(const Node& node) {
  if (node.size() == 1) {
    return std::to_string(node.begin);
  }
  const int64_t middle = node.begin + left_size(node.size());
  return "(" + text_of({node.begin, middle}) + "+" + text_of({middle, node.end}) + ")";
}

// What the steps of a plan make of texts, by closed node.
std::vector<std::string> run_steps(const MergePlan& plan) {
  std::vector<std::string> sums, slots(plan.slots()), results(plan.closed().size());
  for (const auto& held : plan.nodes()) {
    for (const Node& node : held) {
      sums.push_back(text_of(node));
    }
  }
  for (const MergePlan::Step& step : plan.steps()) {
    std::vector<std::string> row;
    for (int32_t i = 0; i < step.count; ++i) {
      row.push_back(step.operands[i] >= 0 ? sums.at(step.operands[i]) : slots.at(~step.operands[i]));
    }
    for (; row.size() > 1; row.resize(row.size() / 2)) {
      for (size_t i = 0; i < row.size() / 2; ++i) {
        row[i] = "(" + row[2 * i] + "+" + row[2 * i + 1] + ")";
      }
    }
    (step.target >= 0 ? results.at(step.target) : slots.at(~step.target)) = row[0];
  }
  return results;
}

// Every way to give leaves to four members in order, some perhaps to none.
void each_partition(int64_t leaves, const std::function<void(const std::vector<Node>&)>& body) {
  for (int64_t first = 0; first <= leaves; ++first) {
    for (int64_t second = first; second <= leaves; ++second) {
      for (int64_t third = second; third <= leaves; ++third) {
        body({{0, first}, {first, second}, {second, third}, {third, leaves}});
      }
    }
  }
}

TEST(MergePlan, StepsWriteTheTree) {
  for (int64_t leaves = 1; leaves <= 16; ++leaves) {
    each_partition(leaves, [&](const std::vector<Node>& parts) {
      const MergePlan plan = plan_merge(parts, {0, leaves});
      ASSERT_EQ(run_steps(plan), (std::vector<std::string>{text_of({0, leaves})})) << plan.str();
    });
  }
}

TEST(MergePlan, StepsOfSingleLeavesSomeOfThemMissing) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 engine(seed);
  for (int round = 0; round < 2000; ++round) {
    const auto leaves = static_cast<int64_t>(1 + engine() % 40);
    MergePlan::Nodes nodes(5);
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      if (engine() % 10 > 0) {
        nodes[engine() % 5].push_back({leaf, leaf + 1});
      }
    }
    const MergePlan plan(nodes, {0, leaves});
    std::vector<std::string> expected;
    for (const Node& node : plan.closed()) {
      expected.push_back(text_of(node));
    }
    ASSERT_EQ(run_steps(plan), expected) << "seed " << seed << ", " << plan.str();
  }
}

TEST(MergePlan, FewWideSteps) {
  const auto steps_for = [](int64_t leaves) {
    MergePlan::Nodes nodes;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      nodes.push_back({{leaf, leaf + 1}});
    }
    return MergePlan(nodes, {0, leaves}).steps().size();
  };
  EXPECT_EQ(steps_for(4), 1u);
  EXPECT_EQ(steps_for(8), 1u);
  EXPECT_EQ(steps_for(16), 3u);
  EXPECT_EQ(steps_for(5), 2u);
}

TEST(MergePlan, OverlappingNodesAreOurMistake) {
  try {
    MergePlan({{{0, 2}}, {{1, 2}}}, {0, 4});
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("nodes [0,2) and [1,2) overlap"), std::string::npos) << error.what();
  }
}

// 8 leaves on 3 ranks are 3, 3 and 2: two nodes, two and one.
TEST(MergeBytes, EveryNodeIsCounted) {
  constexpr int64_t kNumel = 9000, kBytes = kNumel * 8;
  constexpr int64_t kToAll[] = {2 * kBytes, 2 * kBytes, 4 * kBytes / 3},
                    kToOneEach[] = {4 * kBytes / 3, 4 * kBytes / 3, 2 * kBytes / 3};
  const MergePlan plan = plan_merge({{0, 3}, {3, 6}, {6, 8}}, {0, 8});
  const Scatter thirds{.dim = 0, .parts = {{0, 3000}, {3000, 6000}, {6000, 9000}}};
  for (int64_t member = 0; member < 3; ++member) {
    EXPECT_EQ(bytes_sent(plan, member, {kNumel}, 8, {}), kToAll[member]);
    EXPECT_EQ(bytes_sent(plan, member, {kNumel}, 8, thirds), kToOneEach[member]);
    EXPECT_EQ(sizes_at(member, {kNumel}, {}), (std::vector<int64_t>{kNumel}));
    EXPECT_EQ(sizes_at(member, {kNumel, 5}, thirds), (std::vector<int64_t>{3000, 5}));
  }
}

}  // namespace
}  // namespace tessera::sums::merge_plan_test
