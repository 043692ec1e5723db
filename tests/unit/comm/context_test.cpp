#include "support.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "tessera/comm/call/call.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/core/rank_hooks.h"
#include "tessera/layout/mesh.h"

namespace tessera::comm::context_test {
namespace {

TEST(Context, IsThereInARankAndNowhereElse) {
  EXPECT_EQ(RankContext::current(), nullptr);
  EXPECT_TRUE(contains(message_from<c10::Error>([] { RankContext::require(); }), "run_ranks"));
  run_ranks(
      3,
      [](int64_t rank) {
        EXPECT_EQ(RankContext::require().rank, rank);
        EXPECT_EQ(RankContext::require().world_size, 3);
        EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
        std::thread([] { EXPECT_EQ(RankContext::current(), nullptr); }).join();
      },
      within(5000));
  EXPECT_EQ(RankContext::current(), nullptr);
  EXPECT_TRUE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
}

TEST(Context, TravelsWithLibtorchsThreadLocalState) {
  run_ranks(
      2,
      [](int64_t rank) {
        auto* context = RankContext::current();
        const at::ThreadLocalState state;
        std::thread([&] {
          const at::ThreadLocalStateGuard guard(state);
          EXPECT_EQ(RankContext::current(), context);
          auto sum = at::ones({4}) * rank;
          world().all_reduce(sum, ReduceOp::kSum)->wait();
          EXPECT_EQ(sum[0].item<float>(), 1.0f);
        }).join();
        std::atomic<bool> done{false};
        at::launch([&] {
          EXPECT_EQ(RankContext::current(), context);
          done = true;
        });
        while (!done) {
          std::this_thread::yield();
        }
        world().barrier();
      },
      within(5000));
  // The pool threads remember nothing.
  for (int i = 0; i < 8; ++i) {
    std::atomic<bool> done{false};
    at::launch([&] {
      EXPECT_EQ(RankContext::current(), nullptr);
      done = true;
    });
    while (!done) {
      std::this_thread::yield();
    }
  }
}

TEST(Context, GuardsNest) {
  RankContext a, b;
  {
    ContextGuard outer(&a);
    {
      ContextGuard inner(&b);
      EXPECT_EQ(RankContext::current(), &b);
    }
    EXPECT_EQ(RankContext::current(), &a);
  }
  EXPECT_EQ(RankContext::current(), nullptr);
}

TEST(Context, ARankOutsideOfAMeshIsToldSo) {
  const layout::Mesh mesh({{"tp", 2}}, {0, 2});
  run_ranks(
      3,
      [&](int64_t rank) {
        auto& context = RankContext::require();
        if (rank == 1) {
          EXPECT_TRUE(contains(message_from<c10::Error>([&] { context.axis(mesh, 0); }), "rank 1 of 3 is not on mesh"));
          return;
        }
        auto sum = at::ones({1});
        context.axis(mesh, 0).all_reduce(sum, ReduceOp::kSum)->wait();
        context.whole(mesh).all_reduce(sum, ReduceOp::kSum)->wait();
        EXPECT_EQ(sum.item<float>(), 4.0f);
      },
      within(5000));
}

TEST(Context, SlotsDieWithIt) {
  static const int key = 0;
  auto value = std::make_shared<int>(3);
  run_ranks(
      2,
      [&](int64_t) {
        auto& slot = RankContext::require().slot(&key);
        EXPECT_EQ(slot, nullptr);
        slot = value;
        EXPECT_EQ(RankContext::require().slot(&key), value);
        world().barrier();
      },
      within(5000));
  EXPECT_EQ(value.use_count(), 1);
}

TEST(RunRanks, CannotNest) {
  EXPECT_TRUE(contains(
      message_from<c10::Error>([] { run_ranks(2, [](int64_t) { run_ranks(2, [](int64_t) {}); }, within(5000)); }),
      "a rank cannot start ranks"));
  EXPECT_THROW(run_ranks(0, [](int64_t) {}), c10::Error);
}

TEST(RunRanks, StartsWithTheCallersStateAndItsOwnThreadCount) {
  const auto before = at::get_num_threads();
  {
    const c10::AutoGradMode no_grad(false);
    run_ranks(
        3,
        [](int64_t rank) {
          EXPECT_FALSE(c10::GradMode::is_enabled());
          at::set_num_threads(static_cast<int>(rank) + 1);
          world().barrier();
          EXPECT_EQ(at::get_num_threads(), rank + 1);  // the count is per thread
        },
        within(5000));
  }
  EXPECT_EQ(at::get_num_threads(), before);
  run_ranks(2, [](int64_t) { EXPECT_EQ(at::get_num_threads(), std::min(3, most_intra_op_threads())); },
            {.intra_op_threads = 3});
  run_ranks(2, [](int64_t) { EXPECT_EQ(at::get_num_threads(), threads_per_rank(2)); });
  EXPECT_EQ(threads_per_rank(1000000), 1);
  std::thread([&] { EXPECT_EQ(at::get_num_threads(), before); }).join();
}

thread_local int hooked = 0;

TEST(RunRanks, CallsHooksInEveryRankAndDropsTheirGuards) {
  static std::atomic<int> live{0};
  add_rank_hook([] {
    EXPECT_NE(RankContext::current(), nullptr);
    ++hooked;
    ++live;
    return std::shared_ptr<void>(nullptr, [](void*) {
      --hooked;
      --live;
    });
  });
  run_ranks(3, [](int64_t) { EXPECT_EQ(hooked, 1); }, within(5000));
  EXPECT_EQ(live, 0);
  run_fake(5, 2, [] { EXPECT_EQ(hooked, 1); });
  EXPECT_EQ(hooked, 0);
  EXPECT_EQ(live, 0);
}

// Counts, and throws on its third event.
struct Counter : Watcher {
  std::vector<std::string> seen;
  int throws_at = -1;
  void note(std::string text) {
    seen.push_back(std::move(text));
    if (static_cast<int>(seen.size()) == throws_at) {
      throw std::runtime_error("a broken watcher");
    }
  }
  void on_begin(const Call& call) override { note("begin " + call.str() + " " + std::to_string(call.bytes())); }
  void on_end(const Call& call, bool failed) override {
    note(std::string(failed ? "failed " : "end ") + name_of(call.kind));
  }
};

TEST(Watchers, SeeEveryCollectiveAndCannotBreakIt) {
  run_ranks(
      2,
      [](int64_t rank) {
        auto& context = RankContext::require();
        auto good = std::make_shared<Counter>(), bad = std::make_shared<Counter>();
        bad->throws_at = 3;
        context.watchers = {bad, good};
        Caller caller(context, "aten::mm");
        for (int i = 0; i < 3; ++i) {
          world().all_reduce(at::zeros({2, 2}), ReduceOp::kSum)->wait();
        }
        if (rank == 0) {
          world().send(at::zeros({3}, at::kLong), 1, 5)->wait();
        } else {
          world().receive(at::zeros({3}, at::kLong), 0, 5)->wait();
        }
        EXPECT_EQ(bad->seen.size(), 3u);
        ASSERT_EQ(good->seen.size(), 8u);
        EXPECT_EQ(good->seen[0], "begin all_reduce(sum) of Float[2, 2] over world for op aten::mm 16");
        EXPECT_EQ(good->seen[1], "end all_reduce");
        EXPECT_EQ(good->seen[6], rank == 0
                                     ? "begin send(to rank 1, tag 5) of Long[3] over world for op aten::mm 24"
                                     : "begin receive(from rank 0, tag 5) of Long[3] over world for op aten::mm 24");
      },
      within(5000));
}

TEST(Watchers, AreToldOfFailures) {
  auto watcher = std::make_shared<Counter>();
  EXPECT_THROW(run_ranks(
                   2,
                   [&](int64_t rank) {
                     if (rank == 0) {
                       RankContext::require().watchers = {watcher};
                       world().barrier();
                     }
                     throw std::runtime_error("gone");
                   },
                   within(5000)),
               std::runtime_error);
  EXPECT_EQ(watcher->seen, (std::vector<std::string>{"begin barrier over world 0", "failed barrier"}));
}

}  // namespace
}  // namespace tessera::comm::context_test
