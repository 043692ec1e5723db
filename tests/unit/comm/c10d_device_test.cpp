// What is particular to collectives between devices, over a stand-in for NCCL; what they compute is in
// collectives_test.cpp.
#include <cmath>
#include <random>

#include <ATen/ops/full.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/sums/ordered_combine.h"
#include "tests/unit/comm/device_ranks.h"

namespace tessera::comm::c10d_device_test {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor given(int64_t from, int64_t to, at::IntArrayRef sizes, at::ScalarType dtype) {
  return values_of(static_cast<uint64_t>(from * 100 + to + 1), sizes, dtype);
}

Tensors values_of_all(int64_t ranks, at::IntArrayRef sizes, at::ScalarType dtype, int64_t to = 0) {
  Tensors values;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    values.push_back(given(rank, to, sizes, dtype));
  }
  return values;
}

TEST(DeviceCollectives, AWorkThatIsDroppedLeavesTheNextOnesInStep) {
  run_devices_well(2, [](int64_t rank) {
    for (int i = 0; i < 5; ++i) {
      auto dropped = given(rank, i, {50}, at::kBFloat16), kept = given(rank, i, {60}, at::kFloat);
      if (rank == 0) {
        const auto work = world().all_reduce(dropped, ReduceOp::kSum);
      } else {
        world().all_reduce(dropped, ReduceOp::kSum)->wait();
      }
      world().all_reduce(kept, ReduceOp::kSum)->wait();
      EXPECT_TRUE(identical(kept, combine_as_stand_in(values_of_all(2, {60}, at::kFloat, i), ReduceOp::kSum)));
    }
  });
}

TEST(DeviceMessages, AReceiveThatIsGivenUpTouchesNothingAndSkipsItsMessage) {
  run_devices_well(2, [](int64_t rank) {
    if (rank == 0) {
      for (int64_t i = 0; i < 3; ++i) {
        world().send(at::full({4}, static_cast<double>(i + 1)), 1, 5)->wait();
      }
      return world().barrier();
    }
    auto untouched = at::zeros({4}), got = at::zeros({4});
    {
      const auto dropped = world().receive(untouched, 0, 5);
    }
    world().receive(got, 0, 5)->wait();
    EXPECT_TRUE(got.equal(at::full({4}, 2.0)));
    EXPECT_TRUE(untouched.equal(at::zeros({4})));
    world().barrier();
  });
}

// The definition.
at::Tensor tree(const Tensors& leaves, const sums::Node& node) {
  if (node.size() == 1) {
    return leaves[static_cast<size_t>(node.begin)];
  }
  const int64_t middle = node.begin + sums::left_size(node.size());
  return tree(leaves, {node.begin, middle}) + tree(leaves, {middle, node.end});
}

// Leaves cut into runs by chance, some of them empty, given to members.
sums::MergePlan::Nodes random_nodes(std::mt19937_64& random, int64_t members, int64_t leaves) {
  std::vector<int64_t> cuts = {0, leaves};
  for (int64_t i = 1; i < members; ++i) {
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(leaves + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  sums::MergePlan::Nodes nodes;
  for (int64_t i = 0; i < members; ++i) {
    nodes.push_back(sums::cover({cuts[static_cast<size_t>(i)], cuts[static_cast<size_t>(i + 1)]}, leaves));
  }
  return nodes;
}

TEST(DeviceMerge, HasTheBitsOfTheTreeWholeAndScattered) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_devices_well(
        3,
        [&](int64_t rank) {
          std::mt19937_64 random(seed);
          for (const int64_t numel : {5, 40000}) {
            const auto count = static_cast<int64_t>(1 + random() % 16);
            const auto nodes = random_nodes(random, 3, count);
            const sums::MergePlan plan(nodes, {0, count});
            Tensors leaves;
            for (int64_t i = 0; i < count; ++i) {
              leaves.push_back(given(i, 0, {numel}, at::kFloat) * std::exp2(static_cast<double>(i * 7 % 11)));
            }
            Merge merge{.plan = plan, .sizes = {numel}, .options = at::TensorOptions().dtype(at::kFloat)};
            for (const auto& node : nodes[static_cast<size_t>(rank)]) {
              merge.sums.push_back(tree(leaves, node));
            }
            const auto whole = world().merge(merge);
            ASSERT_EQ(whole.size(), 1u);
            EXPECT_TRUE(identical(whole[0].sum, tree(leaves, plan.root()))) << count << " leaves";
            merge.scatter = sums::Scatter{.dim = 0, .parts = {{0, 2}, {2, 2}, {2, numel}}};
            const auto part = merge.scatter->parts[static_cast<size_t>(rank)];
            const auto scattered = world().merge(merge);
            EXPECT_TRUE(identical(scattered[0].sum, tree(leaves, plan.root()).narrow(0, part.begin, part.size())))
                << count << " leaves";
          }
        },
        seed);
  }
}

// Meta tensors stand for those of the device, so that the two kinds differ.
TEST(DeviceDispatch, EachCallGoesWhereItsTensorsLie) {
  StandInHub hub(at::kMeta);
  const auto errors = run_devices(hub, 2, [&](int64_t rank) {
    const auto there = at::TensorOptions().device(at::kMeta);
    auto here = given(rank, 0, {100}, at::kFloat);
    world().all_reduce(here, ReduceOp::kSum)->wait();
    EXPECT_TRUE(identical(
        here, combined(values_of_all(2, {100}, at::kFloat), ReduceOp::kSum)));  // member 0 first: not the library
    const auto before = hub.calls();
    EXPECT_EQ(before, 0);
    world().barrier();
    world().all_reduce(at::empty({100}, there), ReduceOp::kSum)->wait();
    world().all_gather({at::empty({3}, there), at::empty({3}, there)}, at::empty({3}, there))->wait();
    world().barrier();
    EXPECT_EQ(hub.calls(), 2);
    auto got = at::zeros({3});
    world().send(at::full({3}, static_cast<double>(rank)), 1 - rank, 0);
    world().receive(got, 1 - rank, 0)->wait();
    EXPECT_TRUE(got.equal(at::full({3}, 1.0 - static_cast<double>(rank))));
    EXPECT_EQ(hub.calls(), 2);
  });
  for (const auto& error : errors) {
    EXPECT_EQ(described(error), "");
  }
}

TEST(DeviceLedger, SaysWhatIsComposedOfWhat) {
  run_devices_well(2, [](int64_t rank) {
    auto& ledger = RankContext::require().ledger;
    world().all_reduce(at::ones({8}), ReduceOp::kSum)->wait();
    EXPECT_TRUE(ledger.compositions().empty());
    world().all_reduce(at::ones({8}), ReduceOp::kMax)->wait();
    world().all_reduce(at::ones({8}), ReduceOp::kMax)->wait();
    world().all_reduce(at::ones({100000}, at::TensorOptions().dtype(at::kHalf)), ReduceOp::kSum)->wait();
    world().all_gather({at::ones({1}), at::ones({2})}, at::ones({rank + 1}))->wait();
    const auto all = ledger.compositions();
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0].collective + " of " + all[0].parts + " over " + all[0].axis,
              "all_gather of all_to_all over world");
    EXPECT_EQ(all[1].parts, "all_gather");
    EXPECT_EQ(all[1].calls, 2);
    EXPECT_EQ(all[2].parts, "all_to_all, all_gather");
    EXPECT_EQ(ledger.total_bytes(), 0);  // whose bytes they are is recorded where they are decided
  });
}

TEST(DeviceLedger, SaysTheSameOfCpuTensors) {
  StandInHub hub(at::kMeta);
  const auto errors = run_devices(hub, 2, [](int64_t) {
    const auto& ledger = RankContext::require().ledger;
    world().all_gather({at::ones({1}), at::ones({1})}, at::ones({1}))->wait();
    world().broadcast(at::ones({3}), 0)->wait();
    world().all_reduce(at::ones({3}), ReduceOp::kSum)->wait();
    const auto all = ledger.compositions();
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0].collective + " over " + all[0].axis, "all_gather over world");
    EXPECT_EQ(all[1].collective, "all_reduce");
    EXPECT_EQ(all[0].parts, all[1].parts);
    EXPECT_TRUE(all[1].parts == "shared memory" || all[1].parts == "send, receive") << all[1].parts;
    EXPECT_EQ(all[2].collective + " of " + all[2].parts, "broadcast of send, receive");
  });
  for (const auto& error : errors) {
    EXPECT_EQ(described(error), "");
  }
}

}  // namespace
}  // namespace tessera::comm::c10d_device_test
