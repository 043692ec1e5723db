// Collectives between devices, over a stand-in for NCCL: what they compute, whatever completes first.
#include <cmath>
#include <limits>
#include <random>

#include <ATen/ops/full.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/sums/ordered_combine.h"
#include "tests/unit/comm/device_ranks.h"

namespace tessera::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

const std::vector<int64_t> kRanks = {1, 2, 3, 4};
const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16,     at::kHalf,
                                            at::kLong,  at::kInt,    at::kShort,        at::kChar,
                                            at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};
// Empty, one, fewer than ranks, uneven, and beyond what a composed all_reduce sends to everyone.
const std::vector<int64_t> kSizes = {0, 1, 3, 1031, 40013};

uint64_t key_of(int64_t from, int64_t to = 0) { return static_cast<uint64_t>(from * 100 + to + 1); }

at::Tensor given(int64_t from, int64_t to, at::IntArrayRef sizes, at::ScalarType dtype) {
  return values_of(key_of(from, to), sizes, dtype);
}

at::Tensor zeros_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, at::TensorOptions().dtype(dtype));
}

std::vector<ReduceOp> ops_of(at::ScalarType dtype) {
  if (at::isComplexType(dtype)) {
    return {ReduceOp::kSum, ReduceOp::kProd};
  }
  if (at::isFloatingType(dtype)) {
    return {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg};
  }
  return {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin};
}

// Member 0 first; where the library adds, as the stand-in does: the last first.
at::Tensor expected_of(Tensors values, ReduceOp op, bool is_even = true) {
  const auto dtype = values[0].scalar_type();
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  const bool is_real = dtype == at::kFloat || dtype == at::kDouble;
  if (is_even && ((is_real && (is_sum || op == ReduceOp::kProd)) || (at::isComplexType(dtype) && is_sum))) {
    std::reverse(values.begin(), values.end());
  }
  return combined(values, op);
}

Tensors values_of_all(int64_t ranks, at::IntArrayRef sizes, at::ScalarType dtype, int64_t to = 0) {
  Tensors values;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    values.push_back(given(rank, to, sizes, dtype));
  }
  return values;
}

void sweep(const std::function<void(int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype)>& check) {
  for (const auto ranks : kRanks) {
    run_devices_well(ranks, [&](int64_t rank) {
      for (const auto size : kSizes) {
        for (const auto dtype : kTypes) {
          check(ranks, rank, size, dtype);
        }
      }
    });
  }
}

TEST(DeviceCollectives, AllReduceIsTheSerialLoopInTheOrderOfItsMaker) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    const auto all = values_of_all(ranks, {size}, dtype);
    for (const auto op : ops_of(dtype)) {
      auto tensor = all[static_cast<size_t>(rank)].clone();
      world().all_reduce(tensor, op)->wait();
      ASSERT_TRUE(identical(tensor, expected_of(all, op)))
          << ranks << " ranks, " << dtype << "[" << size << "] " << layout::name_of(op);
    }
  });
}

TEST(DeviceCollectives, ReduceScatterEvenAndUneven) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    for (const bool is_even : {true, false}) {
      const auto length = [&](int64_t to) { return size + (is_even ? 0 : to % 2); };
      Tensors inputs;
      for (int64_t to = 0; to < ranks; ++to) {
        inputs.push_back(given(rank, to, {length(to)}, dtype));
      }
      const auto all = values_of_all(ranks, {length(rank)}, dtype, rank);
      for (const auto op : ops_of(dtype)) {
        auto output = zeros_of({length(rank)}, dtype);
        world().reduce_scatter(output, inputs, op)->wait();
        ASSERT_TRUE(identical(output, expected_of(all, op, is_even || ranks == 1)))
            << ranks << " ranks, " << dtype << "[" << size << "] " << layout::name_of(op);
      }
    }
  });
}

TEST(DeviceCollectives, ReduceScatterOfPiecesOfOneTensorCopiesNothing) {
  run_devices_well(3, [](int64_t rank) {
    const auto all = given(rank, 0, {3, 7}, at::kFloat);
    Tensors expected;
    for (int64_t from = 0; from < 3; ++from) {
      expected.push_back(given(from, 0, {3, 7}, at::kFloat)[rank]);
    }
    auto output = at::zeros({7});
    world().reduce_scatter(output, all.unbind(), ReduceOp::kSum)->wait();
    EXPECT_TRUE(identical(output, expected_of(expected, ReduceOp::kSum)));
  });
}

TEST(DeviceCollectives, AllGatherEvenAndUneven) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    for (const bool is_even : {true, false}) {
      const auto rows = [&](int64_t from) { return is_even ? 2 : from; };
      Tensors outputs;
      for (int64_t from = 0; from < ranks; ++from) {
        outputs.push_back(zeros_of({rows(from), size / 4}, dtype));
      }
      world().all_gather(outputs, given(rank, 0, {rows(rank), size / 4}, dtype))->wait();
      for (int64_t from = 0; from < ranks; ++from) {
        ASSERT_TRUE(identical(outputs[static_cast<size_t>(from)], given(from, 0, {rows(from), size / 4}, dtype)))
            << dtype << "[" << size << "]";
      }
    }
  });
}

TEST(DeviceCollectives, AllGatherIntoOneTensorIsInPlace) {
  run_devices_well(3, [](int64_t rank) {
    const auto whole = at::zeros({3, 5});
    world().all_gather(whole.unbind(), given(rank, 0, {5}, at::kFloat))->wait();
    for (int64_t from = 0; from < 3; ++from) {
      EXPECT_TRUE(identical(whole[from], given(from, 0, {5}, at::kFloat)));
    }
  });
}

TEST(DeviceCollectives, AllToAllTransposesUnevenPieces) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    Tensors inputs, outputs;
    for (int64_t other = 0; other < ranks; ++other) {
      inputs.push_back(given(rank, other, {rank + 2 * other, size / 8}, dtype));
      outputs.push_back(zeros_of({other + 2 * rank, size / 8}, dtype));
    }
    world().all_to_all(outputs, inputs)->wait();
    for (int64_t from = 0; from < ranks; ++from) {
      ASSERT_TRUE(identical(outputs[static_cast<size_t>(from)], given(from, rank, {from + 2 * rank, size / 8}, dtype)));
    }
  });
}

TEST(DeviceCollectives, BroadcastFromEveryRoot) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    for (int64_t root = 0; root < ranks; ++root) {
      auto tensor = given(rank, root, {size}, dtype);
      world().broadcast(tensor, root)->wait();
      ASSERT_TRUE(identical(tensor, given(root, root, {size}, dtype)));
    }
  });
}

TEST(DeviceCollectives, NaNWinsMaxAndMinThoughTheLibraryLosesIt) {
  run_devices_well(3, [](int64_t rank) {
    for (const int64_t size : {4, 30000}) {
      for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
        auto tensor = at::full({size}, static_cast<double>(rank));
        tensor.mutable_data_ptr<float>()[rank] = std::numeric_limits<float>::quiet_NaN();
        world().all_reduce(tensor, op)->wait();
        for (int64_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(std::isnan(tensor.const_data_ptr<float>()[i]));
        }
        EXPECT_EQ(tensor.const_data_ptr<float>()[3], op == ReduceOp::kMax ? 2.0f : 0.0f);
      }
    }
  });
}

TEST(DeviceCollectives, SeveralMayBeIssuedBeforeTheFirstWaitInAnyOrder) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_devices_well(
        3,
        [&](int64_t rank) {
          std::mt19937_64 random(seed * 10 + static_cast<uint64_t>(rank));  // each rank waits in an order of its own
          Tensors tensors;
          std::vector<WorkPtr> works;
          std::vector<size_t> order;
          for (int64_t i = 0; i < 12; ++i) {
            tensors.push_back(given(rank, i, {i % 4 == 3 ? 40000 : 100}, i % 2 ? at::kBFloat16 : at::kFloat));
            works.push_back(world().all_reduce(tensors.back(), i % 3 ? ReduceOp::kSum : ReduceOp::kMax));
            order.push_back(static_cast<size_t>(i));
          }
          std::shuffle(order.begin(), order.end(), random);
          for (const auto i : order) {
            works[i]->wait();
          }
          works[0]->wait();
          for (int64_t i = 0; i < 12; ++i) {
            const auto& tensor = tensors[static_cast<size_t>(i)];
            const auto all = values_of_all(3, tensor.sizes(), tensor.scalar_type(), i);
            EXPECT_TRUE(identical(tensor, expected_of(all, i % 3 ? ReduceOp::kSum : ReduceOp::kMax))) << i;
          }
        },
        seed);
  }
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
      EXPECT_TRUE(identical(kept, expected_of(values_of_all(2, {60}, at::kFloat, i), ReduceOp::kSum)));
    }
  });
}

TEST(DeviceMessages, GoRoundARingWhicheverIsIssuedFirst) {
  for (const int64_t ranks : {2, 3}) {
    run_devices_well(ranks, [&](int64_t rank) {
      const auto next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
      for (const int64_t size : {0, 33, 50000}) {
        auto got = at::zeros({size, 2}), gift = given(rank, 0, {size, 2}, at::kFloat);
        auto receive = world().receive(got, before, 7);
        world().send(gift, next, 7)->wait();
        gift.zero_();  // the message was taken
        receive->wait();
        EXPECT_TRUE(identical(got, given(before, 0, {size, 2}, at::kFloat)));
      }
    });
  }
}

TEST(DeviceMessages, ArriveInTheOrderSentWithinOneTagWhateverIsWaitedForFirst) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_devices_well(
        2,
        [&](int64_t rank) {
          std::mt19937_64 random(seed);
          constexpr int64_t kCount = 12;
          if (rank == 0) {
            for (int64_t i = 0; i < kCount; ++i) {
              world().send(given(0, i, {i * 10}, i % 2 ? at::kFloat : at::kBFloat16), 1, i % 3)->wait();
            }
            return;
          }
          Tensors got(kCount);
          std::vector<WorkPtr> works(kCount);
          for (const int64_t tag : {2, 0, 1}) {
            for (int64_t i = tag; i < kCount; i += 3) {
              got[static_cast<size_t>(i)] = zeros_of({i * 10}, i % 2 ? at::kFloat : at::kBFloat16);
              works[static_cast<size_t>(i)] = world().receive(got[static_cast<size_t>(i)], 0, tag);
            }
          }
          std::shuffle(works.begin(), works.end(), random);
          for (const auto& work : works) {
            work->wait();
          }
          for (int64_t i = 0; i < kCount; ++i) {
            EXPECT_TRUE(
                identical(got[static_cast<size_t>(i)], given(0, i, {i * 10}, i % 2 ? at::kFloat : at::kBFloat16)))
                << i;
          }
        },
        seed);
  }
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

TEST(DeviceSplit, MakesGroupsOfAnySubsetWithoutTheOthers) {
  run_devices_well(4, [](int64_t rank) {
    if (rank == 2) {
      return;
    }
    const auto mine = rank == 3 ? std::vector<std::vector<int64_t>>{{3}} : std::vector<std::vector<int64_t>>{{1, 0}};
    for (int round = 0; round < 3; ++round) {
      const auto group = world().split(mine, "some");
      EXPECT_EQ(group->ranks(), mine[0]);
      auto sum = at::full({5}, static_cast<double>(rank + 1));
      group->all_reduce(sum, ReduceOp::kSum)->wait();
      EXPECT_TRUE(sum.equal(at::full({5}, rank == 3 ? 4.0 : 3.0)));
      auto tensor = at::full({2}, static_cast<double>(rank));
      group->broadcast(tensor, 0)->wait();
      EXPECT_TRUE(tensor.equal(at::full({2}, static_cast<double>(mine[0][0]))));
      const auto alone = group->split({{rank}}, "alone");
      alone->all_reduce(sum, ReduceOp::kAvg)->wait();
      EXPECT_TRUE(sum.equal(at::full({5}, rank == 3 ? 4.0 : 3.0)));
    }
  });
}

// The definition.
at::Tensor tree(const Tensors& leaves, const layout::Node& node) {
  if (node.size() == 1) {
    return leaves[static_cast<size_t>(node.begin)];
  }
  const int64_t middle = node.begin + layout::left_size(node.size());
  return tree(leaves, {node.begin, middle}) + tree(leaves, {middle, node.end});
}

// Leaves cut into runs by chance, some of them empty, given to members.
MergePlan::Nodes random_nodes(std::mt19937_64& random, int64_t members, int64_t leaves) {
  std::vector<int64_t> cuts = {0, leaves};
  for (int64_t i = 1; i < members; ++i) {
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(leaves + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  MergePlan::Nodes nodes;
  for (int64_t i = 0; i < members; ++i) {
    nodes.push_back(layout::cover({cuts[static_cast<size_t>(i)], cuts[static_cast<size_t>(i + 1)]}, leaves));
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
            const MergePlan plan(nodes, {0, count});
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
            merge.scatter = Merge::Scatter{.dim = 0, .parts = {{0, 2}, {2, 2}, {2, numel}}};
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
    EXPECT_EQ(all[0].collective + " of " + all[0].parts + " over " + all[0].axis,
              "all_gather of send, receive over world");
    EXPECT_EQ(all[1].collective, "all_reduce");
    EXPECT_TRUE(all[1].parts == "shared memory" || all[1].parts == "send, receive") << all[1].parts;
    EXPECT_EQ(all[2].collective + " of " + all[2].parts, "broadcast of send, receive");
  });
  for (const auto& error : errors) {
    EXPECT_EQ(described(error), "");
  }
}

}  // namespace
}  // namespace tessera::comm
