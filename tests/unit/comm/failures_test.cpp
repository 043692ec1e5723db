#include "support.h"

#include <atomic>
#include <random>
#include <thread>

#include <ATen/ops/full.h>

#include "tessera/layout/mesh.h"

namespace tessera::comm::failures_test {
namespace {

constexpr const char* kTimeoutAdvice =
    "; look for a lock or a wait that depends on the rank there, or give slow ranks a longer RunOptions::deadline";

constexpr uint64_t kSeed = 7;

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One of several collectives, small or large, over the world or an axis.
void some_collective(const layout::Mesh& mesh, uint64_t which) {
  auto& context = RankContext::require();
  auto& group = which % 3 == 0 ? *context.world : context.axis(mesh, static_cast<int64_t>(which % 3 - 1));
  const auto size = which % 2 ? 17 : 9000;
  switch (which / 6 % 5) {
    case 0: return group.all_reduce(at::ones({size}), ReduceOp::kSum)->wait();
    case 1: {
      std::vector<at::Tensor> outputs(static_cast<size_t>(group.size()), at::Tensor());
      for (auto& output : outputs) {
        output = at::zeros({size});
      }
      return group.all_gather(outputs, at::ones({size}))->wait();
    }
    case 2: return group.broadcast(at::ones({size}), 0)->wait();
    case 3: {
      auto got = at::zeros({size});
      auto receive = group.receive(got, (group.rank() + 1) % group.size(), 0);
      group.send(at::ones({size}), (group.rank() + group.size() - 1) % group.size(), 0);
      return receive->wait();
    }
    default: return group.barrier();
  }
}

TEST(Failures, AnExceptionOnAnyRankAtAnyMomentEndsAllWithIt) {
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  std::mt19937_64 random(kSeed);
  for (int trial = 0; trial < 100; ++trial) {
    const auto culprit = static_cast<int64_t>(random() % 4), moment = static_cast<int64_t>(random() % 12);
    const auto base = random() % 1000;
    std::atomic<int> echoes{0}, ended{0};
    const auto begin = std::chrono::steady_clock::now();
    const auto message = message_from<std::runtime_error>([&] {
      run_ranks(
          4,
          [&](int64_t rank) {
            try {
              for (int64_t i = 0; i < 12; ++i) {
                if (rank == culprit && i == moment) {
                  throw std::runtime_error("boom");
                }
                some_collective(mesh, base + static_cast<uint64_t>(i) * 7);
              }
              if (rank != culprit) {
                world().barrier();
              }
            } catch (const RankFailed& echo) {
              EXPECT_EQ(echo.rank(), culprit);
              EXPECT_TRUE(contains(base::message_of(echo), "failed: boom")) << base::message_of(echo);
              ++echoes;
              ++ended;
              throw;
            } catch (...) {
              ++ended;
              throw;
            }
          },
          within(30000));
    });
    ASSERT_EQ(message, "rank " + std::to_string(culprit) + ": boom") << "seed " << kSeed << ", trial " << trial;
    EXPECT_EQ(echoes, 3);
    EXPECT_EQ(ended, 4);
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "a rank waited for its deadline";
  }
}

TEST(Failures, AnEchoNamesTheCollectiveTheWaiterWasIn) {
  std::string echo;
  run_ranks(1, [](int64_t) {});
  EXPECT_THROW(run_ranks(
                   2,
                   [&](int64_t rank) {
                     auto& context = RankContext::require();
                     if (rank == 1) {
                       throw c10::ValueError({"", "", 0}, "[data] no such file");
                     }
                     try {
                       Caller caller(context, "aten::mm");
                       world().all_reduce(at::zeros({4, 8}), ReduceOp::kSum)->wait();
                     } catch (const RankFailed& error) {
                       echo = base::message_of(error);
                     }
                   },
                   within(5000)),
               c10::ValueError);
  EXPECT_EQ(echo,
            "[comm] rank 0 was in all_reduce(sum) of Float[4, 8] over world for op aten::mm when rank 1 failed: "
            "[data] no such file");
}

TEST(Failures, TypesThatCannotBeMadeFromAMessagePassUnchanged) {
  EXPECT_EQ(message_from<Boom>([] { run_ranks(2, [](int64_t) { throw Boom("mine"); }, within(500)); }), "mine");
  EXPECT_THROW(run_ranks(3, [](int64_t) { throw 5; }, within(500)), int);
}

TEST(Failures, TheFirstRealErrorIsTheOneReported) {
  const auto message = message_from<base::DataError>([] {
    run_ranks(
        3,
        [](int64_t rank) {
          if (rank == 2) {
            TESSERA_THROW(base::DataError, "[data] torn");
          }
          try {
            world().barrier();
          } catch (const RankFailed&) {
            TESSERA_THROW(base::ConfigError, "[config] a consequence");
          }
        },
        within(5000));
  });
  EXPECT_EQ(message, "rank 2: [data] torn");
}

TEST(Failures, LaterCollectivesThrowAtOnce) {
  EXPECT_THROW(run_ranks(
                   2,
                   [](int64_t rank) {
                     if (rank == 0) {
                       throw std::runtime_error("early");
                     }
                     for (int i = 0; i < 3; ++i) {
                       EXPECT_THROW(world().barrier(), RankFailed);
                       EXPECT_THROW(world().send(at::ones({1}), 0, 0)->wait(), RankFailed);
                       EXPECT_THROW(world().receive(at::ones({1}), 0, 0)->wait(), RankFailed);
                     }
                   },
                   within(20000)),
               std::runtime_error);
}

TEST(Timeouts, NameWhoIsMissingAndWhereItIs) {
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  const auto message = message_from<CommTimeout>([&] {
    run_ranks(
        4,
        [&](int64_t rank) {
          auto& context = RankContext::require();
          Caller caller(context, "aten::linear");
          context.deadline = std::chrono::milliseconds(rank == 3 ? 10000 : 250);
          if (rank == 3) {
            context.axis(mesh, 0).barrier();  // waits for rank 1, which does not come
          } else if (rank == 2) {
            context.axis(mesh, 1).all_reduce(at::zeros({5}), ReduceOp::kMax)->wait();
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(600));
          }
        },
        within(250));
  });
  EXPECT_EQ(message,
            "rank 2: [comm] rank 2 waited 250 ms in all_reduce(max) of Float[5] over tp for op aten::linear for rank 3 "
            "(in barrier over dp for op aten::linear)" +
                std::string(kTimeoutAdvice));
}

TEST(Timeouts, OfAReceive) {
  const auto message = message_from<CommTimeout>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          if (rank == 0) {
            auto work = world().receive(at::zeros({2}), 1, 9);
            work->wait();
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(400));
          }
        },
        within(150));
  });
  EXPECT_EQ(message,
            "rank 0: [comm] rank 0 waited 150 ms in receive(from rank 1, tag 9) of Float[2] over world for rank 1 "
            "(in no collective)" +
                std::string(kTimeoutAdvice));
}

TEST(Timeouts, AnUnfinishedReceiveIsGivenUp) {
  run_ranks(
      2,
      [](int64_t rank) {
        if (rank == 0) {
          const auto dropped = world().receive(at::zeros({2}), 1, 9);
        }
        world().barrier();
      },
      within(5000));
}

TEST(Stop, WakesEveryWaitingRank) {
  std::thread signal([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    request_stop();
  });
  const auto message = message_from<Stopped>([] {
    run_ranks(
        3,
        [](int64_t rank) {
          if (rank == 0) {
            world().receive(at::zeros({2}), 1, 0)->wait();
          } else if (rank == 1) {
            world().all_reduce(at::zeros({2}), ReduceOp::kSum)->wait();
          } else {
            for (;;) {
              throw_if_stopped();
              std::this_thread::yield();
            }
          }
        },
        within(20000));
  });
  signal.join();
  EXPECT_TRUE(contains(message, "stopped by a signal")) << message;
  run_ranks(2, [](int64_t) { world().barrier(); }, within(5000));  // a later job is not stopped
}

TEST(Stop, ComesBeforeTheNextCollectiveOfABusyRank) {
  EXPECT_THROW(run_ranks(
                   1,
                   [](int64_t) {
                     request_stop();
                     world().barrier();
                   },
                   within(500)),
               Stopped);
}

// Ranks that are in one long call, of which nothing can wake them.
class Grace : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static RunOptions after(int64_t milliseconds) {
    return {.intra_op_threads = 1, .grace = std::chrono::milliseconds(milliseconds)};
  }

  static void sleep_in(const char* op) {
    const Caller caller(RankContext::require(), op);
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
};

TEST_F(Grace, AFailureEndsTheProcessOfARankThatDoesNotComeBack) {
  EXPECT_EXIT(run_ranks(
                  3,
                  [](int64_t rank) {
                    if (rank == 1) {
                      throw std::runtime_error("the disk is full");
                    }
                    rank == 2 ? sleep_in("aten::mm") : world().barrier();
                  },
                  after(200)),
              testing::ExitedWithCode(1),
              "tessera: rank 1 failed: the disk is full\ntessera: 200 ms later rank 2 \\(in no collective, the last "
              "operator is aten::mm\\) has not come back; a "
              "thread cannot be ended alone: this ends the process\n");
}

TEST_F(Grace, SoDoesASignal) {
  EXPECT_EXIT(run_ranks(
                  2,
                  [](int64_t rank) {
                    if (rank == 0) {
                      request_stop();
                    }
                    sleep_in("aten::mm");
                  },
                  after(200)),
              testing::ExitedWithCode(130),
              "tessera: stopped by a signal\ntessera: 200 ms later rank 0 \\(.*\\), rank 1 \\(.*\\) has not come back");
}

TEST_F(Grace, ALanguageSaysWhereItsRanksAre) {
  auto options = after(100);
  options.where = [] { return std::string("rank 1 (train.py:12, in load)"); };
  const auto run = [&] {
    run_ranks(
        2,
        [](int64_t rank) {
          if (rank == 0) {
            throw std::runtime_error("boom");
          }
          sleep_in("aten::mm");
        },
        options);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1), "100 ms later rank 1 \\(train.py:12, in load\\) has not come back");
  options.where = []() -> std::string {
    std::this_thread::sleep_for(std::chrono::hours(1));
    return "never";
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(1),
              "100 ms later rank 1 \\(in no collective, the last operator is aten::mm\\) has not come back");
}

TEST_F(Grace, ARankThatComesBackInTimeEndsTheJobAsEver) {
  const auto message = message_from<std::runtime_error>([] {
    run_ranks(
        2,
        [](int64_t rank) {
          if (rank == 0) {
            throw std::runtime_error("boom");
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        },
        after(60000));
  });
  EXPECT_EQ(message, "rank 0: boom");
}

}  // namespace
}  // namespace tessera::comm::failures_test
