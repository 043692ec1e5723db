#include "support.h"

#include <cmath>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

namespace tessera::comm {
namespace {

const std::vector<int64_t> kRanks = {1, 2, 3, 4, 7};
const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16,     at::kHalf,
                                            at::kLong,  at::kBool,   at::kComplexDouble};
// Empty, one, uneven, and beyond what the last to arrive does alone.
const std::vector<int64_t> kSizes = {0, 1, 5, 1031, 20011};

uint64_t key_of(int64_t from, int64_t to = 0) { return static_cast<uint64_t>(from * 100 + to + 1); }

std::vector<at::Tensor> values_of_all(int64_t ranks, at::IntArrayRef sizes, at::ScalarType dtype, int64_t to = 0) {
  std::vector<at::Tensor> values;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    values.push_back(values_of(key_of(rank, to), sizes, dtype));
  }
  return values;
}

std::vector<ReduceOp> ops_of(at::ScalarType dtype) {
  if (at::isComplexType(dtype)) {
    return {ReduceOp::kSum, ReduceOp::kProd};
  }
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd};
  if (at::isFloatingType(dtype)) {
    ops.push_back(ReduceOp::kAvg);
  }
  return ops;
}

// Runs `check(rank, size, dtype)` for every count of ranks, size and dtype.
void sweep(const std::function<void(int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype)>& check) {
  for (const auto ranks : kRanks) {
    run_ranks(
        ranks,
        [&](int64_t rank) {
          for (const auto size : kSizes) {
            for (const auto dtype : kTypes) {
              check(ranks, rank, size, dtype);
            }
          }
        },
        within(20000));
  }
}

TEST(Collectives, AllReduceHasTheBitsOfTheSerialLoop) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    const auto all = values_of_all(ranks, {size}, dtype);
    for (const auto op : ops_of(dtype)) {
      auto tensor = all[static_cast<size_t>(rank)].clone();
      world().all_reduce(tensor, op)->wait();
      ASSERT_TRUE(identical(tensor, combined(all, op)))
          << ranks << " ranks, " << dtype << "[" << size << "] " << layout::name_of(op);
    }
  });
}

TEST(Collectives, ReduceScatterHasTheBitsOfTheSerialLoop) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    std::vector<at::Tensor> inputs;
    for (int64_t to = 0; to < ranks; ++to) {
      inputs.push_back(values_of(key_of(rank, to), {size + to % 2}, dtype));  // uneven
    }
    const auto given = values_of_all(ranks, {size + rank % 2}, dtype, rank);
    for (const auto op : ops_of(dtype)) {
      auto output = at::empty({size + rank % 2}, inputs[0].options());
      world().reduce_scatter(output, inputs, op)->wait();
      ASSERT_TRUE(identical(output, combined(given, op)))
          << ranks << " ranks, " << dtype << "[" << size << "] " << layout::name_of(op);
    }
  });
}

TEST(Collectives, AllGatherKeepsEveryMembersOwnShape) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    std::vector<at::Tensor> outputs;
    for (int64_t from = 0; from < ranks; ++from) {
      outputs.push_back(at::zeros({from, size}, at::TensorOptions().dtype(dtype)));
    }
    world().all_gather(outputs, values_of(key_of(rank), {rank, size}, dtype))->wait();
    for (int64_t from = 0; from < ranks; ++from) {
      ASSERT_TRUE(identical(outputs[static_cast<size_t>(from)], values_of(key_of(from), {from, size}, dtype)));
    }
  });
}

TEST(Collectives, AllToAllTransposesUnevenPieces) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    std::vector<at::Tensor> inputs, outputs;
    for (int64_t other = 0; other < ranks; ++other) {
      inputs.push_back(values_of(key_of(rank, other), {rank + 2 * other, size / 4}, dtype));
      outputs.push_back(at::zeros({other + 2 * rank, size / 4}, at::TensorOptions().dtype(dtype)));
    }
    world().all_to_all(outputs, inputs)->wait();
    for (int64_t from = 0; from < ranks; ++from) {
      ASSERT_TRUE(identical(outputs[static_cast<size_t>(from)],
                            values_of(key_of(from, rank), {from + 2 * rank, size / 4}, dtype)));
    }
  });
}

TEST(Collectives, BroadcastFromEveryRoot) {
  sweep([](int64_t ranks, int64_t rank, int64_t size, at::ScalarType dtype) {
    for (int64_t root = 0; root < ranks; ++root) {
      auto tensor = values_of(key_of(rank, root), {size}, dtype);
      world().broadcast(tensor, root)->wait();
      ASSERT_TRUE(identical(tensor, values_of(key_of(root, root), {size}, dtype)));
    }
  });
}

TEST(Collectives, NaNWinsMaxAndMin) {
  run_ranks(
      3,
      [](int64_t rank) {
        for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
          auto tensor = at::full({4}, static_cast<double>(rank));
          tensor.mutable_data_ptr<float>()[rank] = std::numeric_limits<float>::quiet_NaN();
          world().all_reduce(tensor, op)->wait();
          for (int64_t i = 0; i < 3; ++i) {
            EXPECT_TRUE(std::isnan(tensor.const_data_ptr<float>()[i]));
          }
          EXPECT_EQ(tensor.const_data_ptr<float>()[3], op == ReduceOp::kMax ? 2.0f : 0.0f);
        }
      },
      within(5000));
}

TEST(Collectives, SeveralMayBeIssuedBeforeTheFirstWait) {
  run_ranks(
      4,
      [](int64_t rank) {
        auto a = values_of(key_of(rank, 0), {700}, at::kFloat), b = values_of(key_of(rank, 1), {9, 11}, at::kDouble);
        auto first = world().all_reduce(a, ReduceOp::kSum);
        auto second = world().all_reduce(b, ReduceOp::kMax);
        second->wait();
        first->wait();
        first->wait();
        EXPECT_TRUE(identical(a, combined(values_of_all(4, {700}, at::kFloat, 0), ReduceOp::kSum)));
        EXPECT_TRUE(identical(b, combined(values_of_all(4, {9, 11}, at::kDouble, 1), ReduceOp::kMax)));
      },
      within(5000));
}

TEST(Messages, GoRoundARingWhicheverIsIssuedFirst) {
  for (const auto ranks : {2, 3, 5}) {
    run_ranks(
        ranks,
        [&](int64_t rank) {
          const auto next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
          auto got = at::zeros({33});
          auto receive = world().receive(got, before, 7);
          auto gift = values_of(key_of(rank), {33}, at::kFloat);
          auto send = world().send(gift, next, 7);
          send->wait();
          gift.zero_();  // the message was taken
          receive->wait();
          EXPECT_TRUE(identical(got, values_of(key_of(before), {33}, at::kFloat)));
        },
        within(5000));
  }
}

TEST(Messages, ArriveInTheOrderSentWithinOneTag) {
  run_ranks(
      2,
      [](int64_t rank) {
        if (rank == 0) {
          for (int64_t i = 0; i < 6; ++i) {
            world().send(at::full({2}, static_cast<double>(i)), 1, i % 2)->wait();
          }
        } else {
          std::vector<at::Tensor> got;
          std::vector<WorkPtr> works;
          for (int64_t i = 0; i < 6; ++i) {
            got.push_back(at::empty({2}));
            works.push_back(world().receive(got.back(), 0, i % 2));
          }
          for (int64_t i = 5; i >= 0; --i) {
            works[static_cast<size_t>(i)]->wait();
            EXPECT_EQ(got[static_cast<size_t>(i)].const_data_ptr<float>()[1], static_cast<float>(i));
          }
        }
      },
      within(5000));
}

TEST(Split, MakesGroupsOfAnySubsetWithoutTheOthers) {
  run_ranks(
      5,
      [](int64_t rank) {
        if (rank == 2) {
          return;  // takes part in nothing
        }
        const std::vector<std::vector<int64_t>> groups = {{4, 0}, {1, 3}};
        for (int round = 0; round < 3; ++round) {
          const auto group = world().split(groups, "pair");
          EXPECT_EQ(group->size(), 2);
          EXPECT_EQ(group->ranks()[static_cast<size_t>(group->rank())], rank);
          auto sum = at::full({1}, static_cast<double>(rank));
          group->all_reduce(sum, ReduceOp::kSum)->wait();
          EXPECT_EQ(sum.const_data_ptr<float>()[0], 4.0f);
          const auto alone = group->split({{rank}}, "alone");
          alone->all_reduce(sum, ReduceOp::kSum)->wait();
          EXPECT_EQ(sum.const_data_ptr<float>()[0], 4.0f);
        }
      },
      within(5000));
}

TEST(Arguments, WrongOnesAreErrorsThatSayWhatIsAccepted) {
  const auto thrown = [](const std::function<void()>& call) {
    return message_from<c10::Error>([&] { run_ranks(1, [&](int64_t) { call(); }, within(500)); });
  };
  EXPECT_TRUE(
      contains(thrown([] { world().all_gather({}, at::zeros({2})); }), "one for each of its 1 members is accepted"));
  EXPECT_TRUE(
      contains(thrown([] { world().all_reduce(at::zeros({2, 3}).t(), ReduceOp::kSum); }), "must be contiguous"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::Tensor(), ReduceOp::kSum); }), "undefined"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::zeros({2}, at::kLong), ReduceOp::kAvg); }),
                       "sum, max, min and prod"));
  EXPECT_TRUE(contains(thrown([] { world().all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kMax); }),
                       "sum, prod and avg"));
  EXPECT_TRUE(contains(thrown([] { world().broadcast(at::zeros({2}), 1); }), "0 to 0 is accepted"));
  EXPECT_TRUE(contains(thrown([] { world().send(at::zeros({2}), 0, 0); }), "itself"));
  EXPECT_TRUE(contains(thrown([] { world().all_gather({at::zeros({3})}, at::zeros({2})); }), "equal sizes"));
  EXPECT_TRUE(contains(thrown([] { world().all_gather({at::zeros({2}, at::kLong)}, at::zeros({2})); }),
                       "one dtype and device"));
  EXPECT_TRUE(contains(thrown([] { world().split({{1}}, "odd"); }), "no group of odd contains rank 0"));
  EXPECT_TRUE(contains(thrown([] { world().split({{0, 1}}, "odd"); }), "lacks rank 1"));
  EXPECT_TRUE(contains(
      thrown([] { world().all_reduce(at::zeros({2}, at::TensorOptions().device(at::kMeta)), ReduceOp::kSum); }),
      "cpu"));
}

}  // namespace
}  // namespace tessera::comm
