// What a cached call does beside the local operator: it makes the result's own records, and plans nothing.

#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"

namespace {
thread_local int64_t allocations = 0;
}

// Not inlined: a compiler that sees malloc and free takes them for a mismatch with new and delete.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tessera::dtensor::hit_path_test {
namespace {

using Body = std::function<void(const at::Tensor& x, const at::Tensor& w)>;

struct Case {
  const char* name;
  Body body;
};

const Case kCases[] = {
    {"add", [](const at::Tensor& x, const at::Tensor&) { at::add(x, x); }},
    {"mul", [](const at::Tensor& x, const at::Tensor&) { at::mul(x, 2.0); }},
    {"mm", [](const at::Tensor& x, const at::Tensor& w) { at::mm(x, w); }},
    {"view", [](const at::Tensor& x, const at::Tensor&) { x.view({-1, 2, 2}); }},
    {"sum", [](const at::Tensor& x, const at::Tensor&) { at::sum(x); }},
};

// The stack of the call: all that a result is made of was dropped by an earlier one.
constexpr int64_t kOwn = 1;
// A view also allocates the list of its sizes (boxing makes it) and what libtorch keeps to replay it from its base.
constexpr int64_t kViewReplay = 7;

int64_t allocations_of(const Body& body, const at::Tensor& x, const at::Tensor& w) {
  for (int i = 0; i < 3; ++i) {
    body(x, w);
  }
  const int64_t before = allocations;
  body(x, w);
  return allocations - before;
}

TEST(HitPath, AllocatesTheResultAndNoMore) {
  const at::NoGradGuard no_grad;
  for (const char* text : {"tp=2", "dp=2,tp=2", "pod=2,dp=2,tp=2"}) {
    const auto mesh = layout::Mesh::parse(text);
    for (const Case& c : kCases) {
      SCOPED_TRACE(std::string(c.name) + " on " + text);
      const int64_t plain = allocations_of(c.body, at::ones({4, 4}), at::ones({4, 4}));
      comm::run_fake(mesh.size(), 0, [&] {
        const at::Tensor x = distribute(at::ones({8, 4}), mesh, "{" + mesh.axis(0).name + ": S(0)}");
        const at::Tensor w = distribute(at::ones({4, 4}), mesh, "{}");
        const bool is_view = std::string(c.name) == "view";
        EXPECT_LE(allocations_of(c.body, x, w) - plain, kOwn + (is_view ? kViewReplay : 0));
      });
    }
  }
}

// What a dropped DTensor leaves to the next one is as good as new (Note [Husks]).
TEST(HitPath, CountsTheWritesOfEachTensorFromZero) {
  const auto mesh = layout::Mesh::parse("tp=2");
  comm::run_fake(mesh.size(), 0, [&] {
    const at::Tensor x = distribute(at::ones({8, 4}), mesh, "{tp: S(0)}");
    for (int i = 0; i < 3; ++i) {
      at::Tensor sum = at::add(x, x);
      EXPECT_EQ(sum._version(), 0);
      sum.add_(1);
      at::Tensor view = sum.view({2, 4, 4}), alias = sum.detach();
      EXPECT_EQ(view._version(), 1);
      view.add_(1);
      alias.add_(1);
      EXPECT_EQ(sum._version(), 3);
      EXPECT_TRUE(at::equal(to_local(sum), at::full({4, 4}, 5)));
      EXPECT_EQ(x._version(), 0);
    }
  });
}

TEST(HitPath, MakesTensorsOfInferenceModeAsOneDeviceDoes) {
  const auto mesh = layout::Mesh::parse("tp=2");
  comm::run_fake(mesh.size(), 0, [&] {
    const at::Tensor x = distribute(at::ones({8, 4}), mesh, "{tp: S(0)}");
    for (int i = 0; i < 3; ++i) {
      const c10::InferenceMode mode(i % 2 == 1);
      const at::Tensor sum = at::add(x, x);
      EXPECT_EQ(sum.is_inference(), i % 2 == 1);
      EXPECT_EQ(sum.view({2, 4, 4}).is_inference(), i % 2 == 1);
      EXPECT_FALSE(x.view({2, 4, 4}).is_inference());
    }
  });
}

TEST(HitPath, PlansEachKindOfCallOnce) {
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  comm::run_fake(mesh.size(), 0, [&] {
    const RankState& state = RankState::require();
    const at::Tensor x = distribute(at::ones({8, 4}), mesh, "{dp: S(0)}"),
                     w = distribute(at::ones({4, 4}), mesh, "{tp: S(1)}");
    const auto call_all = [&] {
      for (const Case& c : kCases) {
        c.body(x, w);
      }
    };
    call_all();
    const size_t first = state.engine.plans().size();
    EXPECT_GE(first, std::size(kCases));
    for (int i = 0; i < 5; ++i) {
      call_all();
    }
    EXPECT_EQ(state.engine.plans().size(), first);
    at::add(x, x, 3);
    EXPECT_EQ(state.engine.plans().size(), first + 1);
  });
}

// Of a cached move on an axis of `members`, here 16x16.
int64_t allocations_of_move(int64_t members, const char* from_text, const char* to_text) {
  int64_t count = 0;
  comm::run_fake(members, 0, [&] {
    const auto mesh = layout::Mesh::parse("x=" + std::to_string(members));
    RankState& state = RankState::require();
    const Spec from = Spec::contiguous(mesh, layout::parse_placements(mesh, from_text), {16, 16}, at::kFloat),
               to = from.with(layout::parse_placements(mesh, to_text));
    const at::Tensor local = at::ones(from.local_sizes(state.ctx.coord(mesh)));
    for (int i = 0; i < 3; ++i) {
      const int64_t before = allocations;
      run_move(state.ctx, *state.engine.moves.find_or_plan(from, to), local, "test");
      count = allocations - before;
    }
  });
  return count;
}

// A view: its TensorImpl and version counter.
constexpr int64_t kView = 2;

// Boxes and peers are worked out once: for each member a run makes the tensors that it gets and gives, and no more.
TEST(HitPath, AMoveMakesOneTensorForEachPiece) {
  const struct {
    const char *from, *to;
    int64_t pieces;
  } cases[] = {{"{x: S(0)}", "{x: R}", 1}, {"{x: S(1)}", "{x: R}", 1},    {"{x: P}", "{x: S(0)}", 1},
               {"{x: P}", "{x: S(1)}", 1}, {"{x: S(0)}", "{x: S(1)}", 2}, {"{x: P}", "{x: R}", 0},
               {"{x: R}", "{x: S(1)}", 0}};
  for (const auto& c : cases) {
    EXPECT_EQ(allocations_of_move(8, c.from, c.to) - allocations_of_move(4, c.from, c.to), 4 * c.pieces * kView)
        << c.from << " -> " << c.to;
  }
}

}  // namespace
}  // namespace tessera::dtensor::hit_path_test
