// Programs whose sizes depend on data: plans, layouts, moves and memory do not grow with the number of calls.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"

namespace {
std::atomic<int64_t> live_bytes{0};
}

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (!memory) {
    throw std::bad_alloc();
  }
  live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace tessera::dtensor::changing_sizes_test {
namespace {

using layout::Mesh;

constexpr int64_t kRows = 1000, kWidth = 8, kCalls = 650, kFirst = 300;
constexpr int64_t kOfACall =
    32;  // what one call makes at most: plans are counted when it has ended, and dropped while it runs

// Of one rank after one call; the bytes of all ranks.
struct Counts {
  int64_t plans = 0, moves = 0, specs = 0, bytes = 0;
};

Counts counts_now() {
  const RankState& state = RankState::require();
  return {static_cast<int64_t>(state.engine.plans().size()), static_cast<int64_t>(state.engine.moves.size()),
          static_cast<int64_t>(Spec::count()), live_bytes};
}

Counts most_of(const Counts& a, const Counts& b) {
  return {std::max(a.plans, b.plans), std::max(a.moves, b.moves), std::max(a.specs, b.specs),
          std::max(a.bytes, b.bytes)};
}

// What a program does with the rows of `x` that a mask chooses.
using Body = std::function<void(const at::Tensor& rows, const at::Tensor& w)>;

struct Case {
  const char* name;
  bool needs_gradients;
  Body body;
};

at::Tensor layer(const at::Tensor& rows, const at::Tensor& w) { return at::relu(at::mm(rows, w)) + rows; }

const Case kCases[] = {
    {"one operator", false, [](const at::Tensor& rows, const at::Tensor&) { rows * 2; }},
    {"a layer", false, [](const at::Tensor& rows, const at::Tensor& w) { layer(rows, w).sum(); }},
    {"redistributed", false, [](const at::Tensor& rows, const at::Tensor&) { redistribute(rows, "{dp: S(0)}"); }},
    {"a layer and its gradients", true,
     [](const at::Tensor& rows, const at::Tensor& w) { layer(rows, w).sum().backward(); }},
    {"four layers and their gradients", true,
     [](const at::Tensor& rows, const at::Tensor& w) {
       layer(layer(layer(layer(rows, w), w), w), w).sum().backward();
     }},
};

// The most of each count in the first calls, and in those after them.
std::pair<Counts, Counts> counts_of(const Case& c, const Mesh& mesh) {
  Counts first, rest;
  comm::run_ranks(mesh.size(), [&] {
    set_numerics(Numerics::kFast);
    const at::AutoGradMode mode(c.needs_gradients);
    const at::Tensor x = distribute(at::ones({kRows, kWidth}), mesh, "{dp: S(0)}").set_requires_grad(c.needs_gradients);
    const at::Tensor w = distribute(at::ones({kWidth, kWidth}), mesh, "{}").set_requires_grad(c.needs_gradients);
    for (int64_t i = 0; i < kCalls; ++i) {
      const at::Tensor mask = distribute(at::arange(kRows) < kRows / 3 + i, mesh, "{}");
      c.body(at::index(x, {mask}), w);
      x.mutable_grad() = w.mutable_grad() = at::Tensor();
      comm::Communicator& all = comm::RankContext::require().whole(mesh);
      all.barrier();  // specs and bytes are those of all ranks: nobody runs meanwhile
      if (all.rank() == 0) {
        Counts& most = i < kFirst ? first : rest;
        most = most_of(most, counts_now());
      }
      all.barrier();
    }
  });
  return {first, rest};
}

TEST(ChangingSizes, LeaveNothingBehind) {
  for (const char* text : {"dp=2", "dp=2,tp=2"}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(std::string(c.name) + " on " + text);
      const Mesh mesh = Mesh::parse(text);
      const auto [first, rest] = counts_of(c, mesh);
      EXPECT_LE(rest.plans, first.plans + kOfACall);
      EXPECT_LE(rest.moves, first.moves + kOfACall);
      EXPECT_LE(
          rest.specs,
          first.specs + mesh.size() * static_cast<int64_t>(PlanCache::kOnTrial));  // ranks drop at different calls
      EXPECT_LE(rest.bytes, first.bytes + (mesh.size() << 18));
    }
  }
}

// What comes back is planned once more at most, however much it is.
TEST(ChangingSizes, CostAProgramOfManyCallsOnePassMore) {
  constexpr int64_t kDifferent = 2000;
  comm::run_fake(2, 0, [] {
    const at::NoGradGuard no_grad;
    const auto mesh = Mesh::parse("dp=2");
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < kDifferent; ++i) {
      all.push_back(distribute(at::ones({i + 1}), mesh, "{}"));
    }
    const auto pass = [&] {
      for (const at::Tensor& x : all) {
        x * 2;
      }
      return RankState::require().engine.plans().size();
    };
    EXPECT_LE(pass(), PlanCache::kOnTrial);
    EXPECT_GE(pass(), static_cast<size_t>(kDifferent));
    const size_t after = pass();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(pass(), after);
    }
  });
}

// A graph whose plans went away between its forward and its backward would be laid out, and named, otherwise.
TEST(ChangingSizes, KeepThePlansOfGraphsThatWait) {
  comm::run_fake(2, 0, [] {
    const auto mesh = Mesh::parse("dp=2");
    const at::Tensor x = distribute(at::ones({kRows, 2}), mesh, "{dp: S(0)}").set_requires_grad(true);
    std::vector<at::Tensor> losses;
    for (int64_t i = 1; i <= kCalls; ++i) {
      losses.push_back(at::slice(x, 0, 0, i).exp().sum());
    }
    const size_t waiting = RankState::require().engine.plans().size();
    EXPECT_GE(waiting, static_cast<size_t>(3 * kCalls));
    for (const at::Tensor& loss : losses) {
      loss.backward();
    }
    for (int64_t i = 1; i <= kCalls; ++i) {
      const at::NoGradGuard no_grad;
      distribute(at::ones({i}), mesh, "{}") * 2;
    }
    EXPECT_LE(RankState::require().engine.plans().size(), PlanCache::kOnTrial + PlanCache::kYoung);
  });
}

// Beside a map that never forgets.
TEST(PlanCache, DropsNothingThatIsHeldOrKept) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(c10::str("seed ", seed));
  std::mt19937_64 random(seed);
  PlanCache cache;
  std::map<uint64_t, CallPlan*> held, kept;
  const auto key_of = [](uint64_t name) { return PlanCache::Key{name, name + 1}; };
  const auto hash_of = [](uint64_t name) { return name % 64 * 0x9E3779B9u; };  // many share one
  for (uint64_t name = 1; name <= 20000; ++name) {
    const uint64_t asked = random() % 4 == 0 && !kept.empty() ? kept.begin()->first : name;
    CallPlan* plan = cache.find(key_of(asked), hash_of(asked));
    if (asked != name) {
      ASSERT_EQ(plan, kept.at(asked));
      continue;
    }
    ASSERT_EQ(plan, nullptr);
    plan = cache.insert(key_of(name), hash_of(name), name, std::make_unique<CallPlan>());
    if (random() % 16 == 0) {
      ++plan->holders;
      held[name] = plan;
    }
    if (held.size() > 40) {
      const auto oldest = held.begin();
      ASSERT_EQ(cache.find(key_of(oldest->first), hash_of(oldest->first)), oldest->second);
      --oldest->second->holders;
      if (random() % 8 == 0) {
        const PlanCache::Call call(cache, *oldest->second);
        ASSERT_TRUE(oldest->second->is_kept);
        kept.insert(*oldest);
      }
      held.erase(oldest);
    }
    ASSERT_LE(cache.size(), kept.size() + PlanCache::kOnTrial + PlanCache::kYoung);
  }
  ASSERT_GT(kept.size(), 50u);
  for (const auto& [name, plan] : kept) {
    ASSERT_EQ(cache.find(key_of(name), hash_of(name)), plan);
  }
}

// Threads that make, share and drop the same layouts.
TEST(Specs, LiveAsLongAsTheyAreHeld) {
  const auto mesh = Mesh::parse("dp=2,tp=2");
  const auto spec_of = [&](int64_t size) {
    return Spec::contiguous(mesh, {layout::Shard(0), layout::Replicate()}, {size, 3}, at::kFloat);
  };
  const size_t before = Spec::count();
  const Spec kept = spec_of(1);
  kept.keep();
  {
    std::vector<std::thread> threads;
    std::atomic<int64_t> wrong{0};
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < 20000; ++i) {
          const Spec a = spec_of(1 + (i + t) % 7), b = spec_of(1 + (i + t) % 7), c = a;
          wrong += !(a == b && c == b && b->sizes[0] == 1 + (i + t) % 7 && b->numel() == 3 * b->sizes[0]);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_EQ(Spec::count(), before + 1);
  Spec moved = spec_of(5), copy = moved;
  const Spec other = std::move(moved);
  EXPECT_EQ(other, copy);
  EXPECT_FALSE(static_cast<bool>(moved));
  copy = kept;
  EXPECT_EQ(copy->sizes[0], 1);
  EXPECT_EQ(Spec::count(), before + 2);
}

}  // namespace
}  // namespace tessera::dtensor::changing_sizes_test
