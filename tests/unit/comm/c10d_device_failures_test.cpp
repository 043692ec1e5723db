// What goes wrong between devices: every member is told which rank, which call, for which op, over which axis.
#include <thread>

#include <ATen/ops/full.h>

#include "tessera/layout/mesh.h"
#include "tests/unit/comm/device_ranks.h"

namespace tessera::comm::c10d_device_failures_test {
namespace {

using std::chrono::milliseconds;

std::vector<std::string> all_described(const std::vector<std::exception_ptr>& errors) {
  std::vector<std::string> texts;
  for (const auto& error : errors) {
    texts.push_back(described(error));
  }
  return texts;
}

// How many of `texts` begin with `kind` and contain `part`.
int64_t count(const std::vector<std::string>& texts, const std::string& kind, const std::string& part) {
  return std::count_if(texts.begin(), texts.end(),
                       [&](const auto& text) { return text.rfind(kind + ": ", 0) == 0 && contains(text, part); });
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) {
    all += "\n  " + text;
  }
  return all;
}

void reduce_over(int64_t axis, const char* op, int64_t size = 8) {
  auto& context = RankContext::require();
  const auto mesh = layout::Mesh::parse("dp=1,tp=" + std::to_string(context.world_size));
  const Caller caller(context, op);
  context.axis(mesh, axis).all_reduce(at::ones({size}), ReduceOp::kSum)->wait();
}

TEST(DeviceFailures, OfTheDeviceNameRankCallOpAndAxisOnEveryRank) {
  StandInHub hub;
  hub.fail_later(3, "an uncorrectable error of the link");
  const auto texts = all_described(run_devices(hub, 3, [&](int64_t) {
    for (int i = 0; i < 10; ++i) {
      reduce_over(1, "aten::mm");
    }
  }));
  const std::string what =
      " failed in all_reduce(sum) of Float[8] over tp for op aten::mm: an uncorrectable error of the link";
  EXPECT_GE(count(texts, "CommError", what), 1) << joined(texts);
  for (const auto& text : texts) {
    EXPECT_TRUE(contains(text, what)) << joined(texts);
  }
  EXPECT_EQ(count(texts, "CommError", what) +
                count(texts, "RankFailed", "was in all_reduce(sum) of Float[8] over tp for op aten::mm when rank "),
            3)
      << joined(texts);
}

TEST(DeviceFailures, OfAWorkThatNobodyWaitsForComeWithTheNextCall) {
  StandInHub hub;
  hub.fail_later(0, "out of memory");
  const auto texts = all_described(run_devices(hub, 2, [&](int64_t) {
    const auto work = world().all_reduce(at::ones({4}), ReduceOp::kSum);
    for (int i = 0; i < 500; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      world().barrier();
    }
  }));
  for (const auto& text : texts) {
    EXPECT_TRUE(contains(text, "failed in all_reduce(sum) of Float[4] over world: out of memory")) << joined(texts);
  }
}

TEST(DeviceFailures, AtTheCallItselfAreToldToo) {
  StandInHub hub;
  hub.refuse(1, "no memory for a buffer");
  const auto texts = all_described(run_devices(hub, 2, [&](int64_t) { reduce_over(1, "aten::mm"); }));
  const std::string what =
      "[comm] rank 1 failed in all_reduce(sum) of Float[8] over tp for op aten::mm: no memory for a buffer";
  EXPECT_EQ(count(texts, "CommError", what), 1) << joined(texts);
  EXPECT_TRUE(contains(
      texts[0],
      "RankFailed: [comm] rank 0 was in all_reduce(sum) of Float[8] over tp for op aten::mm when rank 1 failed: " +
          what))
      << joined(texts);
}

TEST(DeviceTimeouts, OfADeviceThatHangsAreToldOnEveryRank) {
  StandInHub hub;
  hub.hang_later(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = all_described(run_devices(
      hub, 3,
      [&](int64_t) {
        for (int i = 0; i < 5; ++i) {
          reduce_over(1, "aten::linear", 40);
        }
      },
      milliseconds(700)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  const std::string what =
      " waited 700 ms for its device in all_reduce(sum) of Float[40] over tp for op aten::linear; every member has "
      "made the call";
  EXPECT_GE(count(texts, "CommTimeout", what), 1) << joined(texts);
  for (const auto& text : texts) {
    EXPECT_TRUE(contains(text, what)) << joined(texts);
  }
}

TEST(DeviceTimeouts, NameTheMemberThatDoesNotCome) {
  StandInHub hub;
  const auto texts = all_described(run_devices(
      hub, 3,
      [&](int64_t rank) {
        reduce_over(1, "aten::mm");
        if (rank == 2) {
          std::this_thread::sleep_for(milliseconds(2500));
        }
        reduce_over(1, "aten::mm");
      },
      milliseconds(800)));
  EXPECT_GE(
      count(texts, "CommTimeout",
            " waited 800 ms in all_reduce(sum) of Float[8] over tp for op aten::mm for rank 2 (in no collective)"),
      1)
      << joined(texts);
  for (const auto& text : texts) {
    EXPECT_TRUE(contains(text, "rank 2 (in no collective)")) << joined(texts);
  }
}

TEST(DeviceTimeouts, OfAReceive) {
  StandInHub hub;
  const auto texts = all_described(run_devices(
      hub, 2,
      [&](int64_t rank) {
        if (rank == 0) {
          return world().receive(at::zeros({2}), 1, 9)->wait();
        }
        std::this_thread::sleep_for(milliseconds(900));
        world().barrier();
      },
      milliseconds(400)));
  EXPECT_EQ(count(texts, "CommTimeout",
                  "rank 0 waited 400 ms in receive(from rank 1, tag 9) of Float[2] over world for rank 1"),
            1)
      << joined(texts);
}

// Of every kind, on any rank: found before any tensor moves.
TEST(DeviceDivergence, IsNamedWithBothCallsAndNothingMoves) {
  const std::vector<std::pair<const char*, std::function<void()>>> kFaults = {
      {"all_reduce(max) of Float[8]", [] { world().all_reduce(at::ones({8}), ReduceOp::kMax)->wait(); }},
      {"all_reduce(sum) of Float[9]", [] { world().all_reduce(at::ones({9}), ReduceOp::kSum)->wait(); }},
      {"all_reduce(sum) of Double[8]",
       [] { world().all_reduce(at::ones({8}, at::TensorOptions().dtype(at::kDouble)), ReduceOp::kSum)->wait(); }},
      {"broadcast(root 1) of Float[8]", [] { world().broadcast(at::ones({8}), 1)->wait(); }},
      {"barrier", [] { world().barrier(); }},
  };
  for (size_t i = 0; i < kFaults.size(); ++i) {
    const auto culprit = static_cast<int64_t>(i % 3);
    StandInHub hub;
    const auto texts = all_described(run_devices(hub, 3, [&](int64_t rank) {
      rank == culprit ? kFaults[i].second() : world().all_reduce(at::ones({8}), ReduceOp::kSum)->wait();
    }));
    EXPECT_EQ(
        count(texts, "DivergenceError", std::string("rank ") + std::to_string(culprit) + " calls " + kFaults[i].first),
        3)
        << joined(texts);
    EXPECT_EQ(hub.calls(), 0);
    EXPECT_EQ(hub.mismatches(), 0);
  }
}

TEST(DeviceDivergence, OfOnePairOfAnAllToAllIsFound) {
  StandInHub hub;
  const auto texts = all_described(run_devices(hub, 3, [&](int64_t rank) {
    std::vector<at::Tensor> inputs(3, at::ones({2})), outputs(3);
    for (auto& output : outputs) {
      output = at::zeros({2});
    }
    if (rank == 1) {
      inputs[2] = at::ones({3});
    }
    world().all_to_all(outputs, inputs)->wait();
  }));
  EXPECT_EQ(
      count(texts, "DivergenceError",
            "rank 1 calls all_to_all of Float[2], Float[3] over world, rank 2 calls all_to_all of Float[2], Float[2]"),
      3)
      << joined(texts);
  EXPECT_EQ(hub.calls(), 0);
}

TEST(DeviceDivergence, OfListsAndOfProgramsIsFound) {
  StandInHub hub;
  auto texts = all_described(run_devices(hub, 2, [&](int64_t rank) {
    world().all_gather({at::ones({2}), at::ones({rank == 0 ? 3 : 4})}, at::ones({rank == 0 ? 2 : 4}))->wait();
  }));
  EXPECT_EQ(count(texts, "DivergenceError", "run different programs"), 2) << joined(texts);
  texts = all_described(run_devices(hub, 2, [&](int64_t rank) {
    auto& program = RankContext::require().program;
    program.note("aten::mm", 1);
    program.note(rank == 0 ? "aten::add" : "aten::mul", rank == 0 ? 2 : 3);
    world().all_reduce(at::ones({8}), ReduceOp::kSum)->wait();
  }));
  EXPECT_EQ(count(texts, "DivergenceError", "they parted at op 1: rank 0 ran aten::add, rank 1 ran aten::mul"), 2)
      << joined(texts);
  EXPECT_EQ(hub.mismatches(), 0);
}

TEST(DeviceDivergence, OfAMessageIsFound) {
  StandInHub hub;
  const auto texts = all_described(run_devices(hub, 2, [&](int64_t rank) {
    if (rank == 0) {
      world().send(at::ones({3}), 1, 4);
    } else {
      world().receive(at::ones({2}), 0, 4)->wait();
    }
    world().barrier();
  }));
  EXPECT_TRUE(contains(texts[1],
                       "DivergenceError: [comm] rank 1 calls receive(from rank 0, tag 4) of Float[2] over world, but "
                       "rank 0 sent Float[3]"))
      << joined(texts);
  EXPECT_TRUE(contains(texts[0], "but rank 0 sent Float[3]")) << joined(texts);
}

TEST(DeviceDivergence, BetweenTheCpuAndTheDeviceIsFound) {
  StandInHub hub(at::kMeta);
  const auto texts = all_described(run_devices(hub, 2, [&](int64_t rank) {
    const auto device = rank == 0 ? at::kMeta : at::kCPU;
    world().all_reduce(at::ones({8}, at::TensorOptions().device(device)), ReduceOp::kSum)->wait();
  }));
  EXPECT_EQ(count(texts, "DivergenceError",
                  "rank 0 calls all_reduce(sum) of Float[8] on device over world, rank 1 calls all_reduce(sum) of "
                  "Float[8] over world"),
            2)
      << joined(texts);
  EXPECT_EQ(hub.calls(), 0);
}

TEST(DeviceDivergence, AMemberThatHasFinishedIsNamed) {
  StandInHub hub;
  const auto texts = all_described(run_devices(hub, 2, [&](int64_t rank) {
    if (rank == 0) {
      world().all_reduce(at::ones({8}), ReduceOp::kSum)->wait();
    }
  }));
  EXPECT_TRUE(contains(texts[0], "rank 1 has finished; rank 0 waits in all_reduce(sum) of Float[8] over world"))
      << joined(texts);
}

// A rank that fails while others' devices wait for it, at any moment.
TEST(DeviceFailures, ARankThatThrowsEndsTheOthersWithItsError) {
  for (int64_t moment = 0; moment < 8; ++moment) {
    const auto culprit = moment % 3;
    StandInHub hub(at::kCPU, static_cast<uint64_t>(moment));
    const auto begin = std::chrono::steady_clock::now();
    const auto texts = all_described(run_devices(hub, 3, [&](int64_t rank) {
      for (int64_t i = 0; i < 8; ++i) {
        if (rank == culprit && i == moment) {
          throw std::runtime_error("boom");
        }
        if (i % 4 == 3) {
          auto got = at::zeros({100});
          auto receive = world().receive(got, (rank + 1) % 3, 0);
          world().send(at::ones({100}), (rank + 2) % 3, 0);
          receive->wait();
        } else {
          reduce_over(static_cast<int64_t>(i % 2 == 0), "aten::mm", i % 3 ? 10 : 50000);
        }
      }
      world().barrier();
    }));
    EXPECT_EQ(count(texts, "RankFailed", "when rank " + std::to_string(culprit) + " failed: boom"), 2)
        << "moment " << moment << joined(texts);
    EXPECT_EQ(texts[static_cast<size_t>(culprit)], "another: boom");
    EXPECT_EQ(hub.mismatches(), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "a rank waited for its deadline";
  }
}

}  // namespace
}  // namespace tessera::comm::c10d_device_failures_test
