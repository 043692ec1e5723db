#include "support.h"

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include <ATen/ops/zeros_like.h>

#include "tessera/layout/mesh.h"

namespace tessera::comm::divergence_test {
namespace {

constexpr uint64_t kSeed = 99;
const char* const kOps[] = {"aten::mm", "aten::add", "aten::relu", "aten::sum"};

// One op of a rank's program: noted, then a collective on its behalf.
void run_op(const char* op, int64_t size, bool gather = false) {
  auto& context = RankContext::require();
  context.program.note(op, std::hash<std::string>()(op) + static_cast<uint64_t>(size));
  Caller caller(context, op);
  if (gather) {
    std::vector<at::Tensor> outputs;
    for (int64_t i = 0; i < world().size(); ++i) {
      outputs.push_back(at::zeros({size}));
    }
    world().all_gather(outputs, at::zeros({size}))->wait();
  } else {
    world().all_reduce(at::zeros({size}), ReduceOp::kSum)->wait();
  }
}

enum class Fault { kOneOpMore, kOtherShape, kOtherCollective, kEndsEarly };

TEST(Divergence, EveryKindOnEveryRankAtEveryMomentIsToldToAll) {
  std::mt19937_64 random(kSeed);
  for (int trial = 0; trial < 60; ++trial) {
    const auto ranks = static_cast<int64_t>(2 + random() % 4),
               culprit = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
    const auto moment = static_cast<int64_t>(random() % 10);
    const auto fault = static_cast<Fault>(trial % 4);
    const bool compare = random() % 2;
    std::atomic<int> told{0};
    auto options = within(30000);
    options.compare_programs = compare;
    const auto begin = std::chrono::steady_clock::now();
    const auto message = message_from<DivergenceError>([&] {
      run_ranks(
          ranks,
          [&](int64_t rank) {
            try {
              for (int64_t i = 0; i < 10; ++i) {
                const bool at_fault = rank == culprit && i == moment;
                if (at_fault && fault == Fault::kEndsEarly) {
                  return;
                }
                if (at_fault && fault == Fault::kOneOpMore) {
                  run_op("aten::extra", 5 + i);
                }
                run_op(kOps[i % 4], at_fault && fault == Fault::kOtherShape ? 100 : 5 + i,
                       at_fault && fault == Fault::kOtherCollective);
              }
            } catch (const DivergenceError&) {
              ++told;
              throw;
            }
          },
          options);
    });
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", trial " + std::to_string(trial) + ": " + message);
    const auto guilty = "rank " + std::to_string(culprit);
    if (fault == Fault::kEndsEarly) {
      EXPECT_TRUE(contains(message, guilty + " has finished; rank "));
      EXPECT_TRUE(contains(message, std::string("for op ") + kOps[moment % 4]));
      EXPECT_EQ(told, ranks - 1);
    } else if (fault == Fault::kOneOpMore && !compare) {
      // Told by shape or, when the shapes happen to pair up to the end, by the missing partner.
      EXPECT_GE(told, 1);
    } else {
      EXPECT_TRUE(contains(message, "run different programs"));
      EXPECT_TRUE(contains(message, guilty + " calls "));
      EXPECT_EQ(told, ranks);
      if (compare && fault == Fault::kOneOpMore) {
        EXPECT_TRUE(contains(message, "they parted at op " + std::to_string(moment)));
        EXPECT_TRUE(contains(message, guilty + " ran aten::extra"));
        EXPECT_TRUE(contains(message, std::string("ran ") + kOps[moment % 4]));
      }
    }
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "a rank waited for its deadline";
  }
}

TEST(Divergence, MessageNamesBothRanksBothCallsAndTheParting) {
  set_detail_printer([](const void* detail) { return "{" + std::string(static_cast<const char*>(detail)) + "}"; });
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          auto& context = RankContext::require();
          for (uint64_t i = 0; i < 100; ++i) {
            context.program.note("aten::mul", i);
          }
          context.program.note(rank ? "aten::exp" : "aten::log", 1000 + static_cast<uint64_t>(rank),
                               rank ? "tp: R" : "tp: S(0)");
          for (uint64_t i = 0; i < 20; ++i) {
            context.program.note("aten::mul", i);
          }
          Caller caller(context, "aten::sum");
          world().all_reduce(at::zeros({2, 3}, at::kDouble), ReduceOp::kSum)->wait();
        },
        within(5000));
  });
  set_detail_printer(nullptr);
  EXPECT_TRUE(
      contains(message,
               "[comm] ranks 0 and 1 run different programs: rank 0 calls all_reduce(sum) of Double[2, 3] over "
               "world for op aten::sum, rank 1 calls all_reduce(sum) of Double[2, 3] over world for op "
               "aten::sum; they parted at op 100: rank 0 ran aten::log {tp: S(0)}, rank 1 ran aten::exp {tp: R}"))
      << message;
}

TEST(Divergence, BeyondTheKeptOpsIsSaidToBe) {
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          for (uint64_t i = 0; i < 100; ++i) {
            RankContext::require().program.note("aten::mul", i + (i == 2 ? static_cast<uint64_t>(rank) : 0));
          }
          world().barrier();
        },
        within(5000));
  });
  EXPECT_TRUE(contains(message, "they parted at or before op 36: ")) << message;
}

TEST(Divergence, OneOpMoreThatTheOthersNeverReach) {
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        3,
        [](int64_t rank) {
          auto& program = RankContext::require().program;
          program.note("aten::mm", 1);
          if (rank == 1) {
            program.note("aten::relu", 2);
          }
          world().barrier();
        },
        within(5000));
  });
  EXPECT_TRUE(contains(message, "they parted at op 1: rank 1 ran aten::relu, rank 0 did not")) << message;
}

// Nobody has to wait for the deadline to know that nobody will come.
TEST(Divergence, RanksThatWaitForEachOtherInDifferentGroups) {
  const auto mesh = layout::Mesh::parse("dp=2");
  std::atomic<int> told{0};
  const auto begin = std::chrono::steady_clock::now();
  const auto message = message_from<DivergenceError>([&] {
    run_ranks(
        2,
        [&](int64_t rank) {
          auto& context = RankContext::require();
          auto& axis = context.axis(mesh, 0);
          context.program.note(rank ? "aten::exp" : "aten::log", 7 + static_cast<uint64_t>(rank));
          try {
            (rank ? axis : world()).barrier();
          } catch (const DivergenceError&) {
            ++told;
            throw;
          }
        },
        within(30000));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(contains(message, " wait for each other: rank ")) << message;
  EXPECT_TRUE(contains(message, "rank 0 calls barrier over world") && contains(message, "rank 1 calls barrier over dp"))
      << message;
  EXPECT_TRUE(contains(message, "they parted at op 0: ")) << message;
}

TEST(Divergence, RanksThatReceiveFromEachOther) {
  const auto message = message_from<DivergenceError>([&] {
    run_ranks(
        3,
        [&](int64_t rank) {
          if (rank < 2) {
            world().receive(at::zeros({2}), 1 - rank, 0)->wait();
          }
        },
        within(30000));
  });
  EXPECT_TRUE(contains(message, " wait for each other: rank ")) << message;
}

TEST(Divergence, ComparisonCanBeSwitchedOff) {
  auto options = within(5000);
  options.compare_programs = false;
  run_ranks(
      2,
      [](int64_t rank) {
        RankContext::require().program.note("aten::mm", static_cast<uint64_t>(rank));
        world().barrier();
      },
      options);
}

TEST(Divergence, AMessageOfAnotherShapeIsToldToTheReceiver) {
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          if (rank == 0) {
            world().send(at::zeros({3}), 1, 4)->wait();
          } else {
            world().receive(at::zeros({4}), 0, 4)->wait();
          }
        },
        within(5000));
  });
  EXPECT_TRUE(
      contains(message, "rank 1 calls receive(from rank 0, tag 4) of Float[4] over world, but rank 0 sent Float[3]"))
      << message;
}

// As many elements, in another shape: of every call whose sizes must agree.
TEST(Divergence, SizesCountNotElements) {
  const auto expected = [](const at::Tensor& own) {  // from the other rank what that one would give in step
    std::vector<at::Tensor> outputs = {at::zeros({2, 3}), at::zeros({2, 3})};
    outputs[static_cast<size_t>(world().rank())] = at::zeros_like(own);
    return outputs;
  };
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> calls = {
      {"all_reduce(sum)", [](const at::Tensor& x) { world().all_reduce(x, ReduceOp::kSum)->wait(); }},
      {"broadcast(root 0)", [](const at::Tensor& x) { world().broadcast(x, 0)->wait(); }},
      {"reduce_scatter(sum)",
       [](const at::Tensor& x) { world().reduce_scatter(at::zeros_like(x), {x, x}, ReduceOp::kSum)->wait(); }},
      {"all_gather", [&](const at::Tensor& x) { world().all_gather(expected(x), x)->wait(); }},
      {"all_to_all", [&](const at::Tensor& x) { world().all_to_all(expected(x), {x, x})->wait(); }},
  };
  for (const auto& [name, call] : calls) {
    const auto message = message_from<DivergenceError>([&, make = call] {
      run_ranks(2, [&](int64_t rank) { make(rank == 0 ? at::zeros({2, 3}) : at::zeros({3, 2})); }, within(5000));
    });
    EXPECT_TRUE(contains(message, std::string("rank 0 calls ") + name + " of ")) << message;
    EXPECT_TRUE(contains(message, std::string("rank 1 calls ") + name + " of ")) << message;
  }
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          rank == 0 ? world().send(at::zeros({2, 3}), 1, 4)->wait() : world().receive(at::zeros({3, 2}), 0, 4)->wait();
        },
        within(5000));
  });
  EXPECT_TRUE(contains(message, "of Float[3, 2] over world, but rank 0 sent Float[2, 3]")) << message;
}

TEST(Divergence, AMessageToARankThatHasFinished) {
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
          while (rank == 0 && std::chrono::steady_clock::now() < end) {  // the first may find it running still
            world().send(at::zeros({4}), 1, 4)->wait();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        },
        within(5000));
  });
  EXPECT_TRUE(contains(message, "rank 1 has finished; rank 0 waits in send(to rank 1, tag 4) of Float[4] over world"))
      << message;
}

TEST(Divergence, WaitingForAMessageOfARankThatHasFinished) {
  const auto message = message_from<DivergenceError>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          if (rank == 1) {
            world().receive(at::zeros({4}), 0, 4)->wait();
          }
        },
        within(5000));
  });
  EXPECT_TRUE(contains(message, "rank 0 has finished; rank 1 waits in receive(from rank 0, tag 4)")) << message;
}

}  // namespace
}  // namespace tessera::comm::divergence_test
