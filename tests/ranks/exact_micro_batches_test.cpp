// How the gradients of a step's micro-batches become one sum in `exact` numerics: in whatever order they come,
// continued by a job, while the program holds earlier ones, into weights that several axes cut.
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/plan/exact_sum.h"
#include "tests/ranks/exact_program.h"

namespace tessera::ranks::exact_micro_batches_test {
namespace {

TEST(ExactMicroBatches, InAnyOrder) {
  const auto run_in = [](const std::function<void(std::vector<size_t>&)>& permuted) {
    return [=](World& world) {
      Net net(world);
      world.each_batch(permuted, [&](const Batch& batch) { net.loss(batch).backward(); });
      net.keep_gradients();
    };
  };
  check("backwards", run_in([](std::vector<size_t>& order) { std::reverse(order.begin(), order.end()); }));
  check("0, 2, 1", run_in([](std::vector<size_t>& order) {
          for (size_t i = 1; i + 1 < order.size(); i += 3) {
            std::swap(order[i], order[i + 1]);
          }
        }));
  check("the first last",
        run_in([](std::vector<size_t>& order) { std::rotate(order.begin(), order.begin() + 1, order.end()); }));
}

// The step's gradients as a job takes them: sums go on where those of earlier micro-batches stopped. `after` each of
// these.
std::vector<at::Tensor> continued(
    World& world, const std::vector<at::Tensor>& parameters, const std::function<at::Tensor(const Batch&)>& loss,
    const std::function<void()>& after = [] {}) {
  std::vector<at::Tensor> held(parameters.size());
  world.each_batch([&](const Batch& batch) {
    const at::Tensor of_batch = loss(batch);
    std::vector<at::Tensor> gradients;
    {
      const dtensor::Continuation continuation(RankState::require(), held);
      gradients = torch::autograd::grad({of_batch}, parameters);
    }
    after();
    for (size_t i = 0; i < held.size(); ++i) {
      held[i] = held[i].defined() ? held[i].add(gradients[i]) : gradients[i];
    }
  });
  return held;
}

// One sum that reaches a parameter by two ways: neither may lose it to the other.
TEST(ExactMicroBatches, TwoFunctionsOfOneSum) {
  check("w and its transpose", [](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth});
    Net net(world);
    const auto gradients = continued(world, {w, net.w2}, [&](const Batch& batch) {
      return net.loss_of(at::linear(net.hidden(at::linear(batch.x, w + w.t())), net.w2), batch.y);
    });
    world.keep("w", gradients[0]), world.keep("w2", gradients[1]);
  });
}

// What is masked by something else than the samples, as a learned bias of attention is, has a gradient that may wait.
TEST(ExactMicroBatches, ThroughMasks) {
  check("where, masked_fill", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    const at::Tensor lower = at::ones({kClasses, kWidth}).tril().to(at::kBool), upper = lower.logical_not();
    Net net(world);
    const auto gradients = continued(world, {w, v}, [&](const Batch& batch) {
      const at::Tensor masked = at::where(lower, w, 0.25) + at::where(upper, 0.5, v) + w.masked_fill(lower, 0.125);
      return net.loss_of(at::linear(batch.x, masked), batch.y);
    });
    world.keep("w", gradients[0]), world.keep("v", gradients[1]);
  });
}

// What a program holds of an earlier micro-batch stays the gradient of that micro-batch.
TEST(ExactMicroBatches, AGradientHeldOverTheNextKeepsItsValue) {
  check("held", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth});
    Net net(world);
    const auto first_gradient = [&](bool reads_at_once) {
      at::Tensor held, value;
      const auto loss = [&](const Batch& batch) {
        const at::Tensor half = w * 0.5;
        half.register_hook([&](const at::Tensor& gradient) { held = held.defined() ? held : gradient; });
        return net.loss_of(at::linear(batch.x, half), batch.y);
      };
      const auto gradients = continued(world, {w}, loss, [&] {
        if (reads_at_once && !value.defined()) {
          value = full_tensor(held).clone();
        }
      });
      world.keep("w", gradients[0]);
      return reads_at_once ? value : full_tensor(held);
    };
    const at::Tensor at_once = first_gradient(true);
    EXPECT_TRUE(at::equal(first_gradient(false), at_once));
  });
}

// A merge that scatters cuts what the other axis has left: the parts begin where that does.
TEST(ExactMicroBatches, IntoAWeightThatTwoAxesCutAlongOneDim) {
  for (const int tp_order : {0, 1}) {
    check(tp_order == 0 ? "tp outside" : "dp outside", [=](World& world) {
      Placements placements(world.mesh.ndim(), layout::Shard(0));
      if (placements.size() == 2) {
        placements = {layout::Shard(0, {.order = 1 - tp_order}), layout::Shard(0, {.order = tp_order})};
      }
      const at::Tensor w = world.parameter("w", {kHidden, kWidth}, placements);
      Net net(world);
      world.each_batch([&](const Batch& batch) {
        net.loss_of(at::linear(at::linear(batch.x, w).tanh(), net.w2), batch.y).backward();
      });
      EXPECT_EQ(spec_of(w.grad())->placements, spec_of(w)->placements);
      world.keep("w", w.grad()), world.keep("w2", net.w2.grad());
    });
  }
}

// ... whatever the other axis cut before it.
TEST(ScatteringMove, PartsAreCountedFromWhatTheRankHolds) {
  run_on(Mesh::parse("dp=2,tp=2"), [](int64_t) {
    RankState& state = RankState::require();
    const Mesh mesh = Mesh::parse("dp=2,tp=2");
    const auto spec = [&](const Placement& dp, const Placement& tp) {
      return Spec::contiguous(mesh, {dp, tp}, {10, 3}, at::kDouble);
    };
    dtensor::ScatteringMove way(state.ctx, state.engine.moves, spec({}, layout::Shard(0)),
                                spec(layout::Shard(0, {.order = 1}), layout::Shard(0, {.order = 0})), {0});
    const auto scatter = way.next({0}).scatter;
    ASSERT_TRUE(scatter);
    EXPECT_EQ(scatter->parts,
              (std::vector<layout::Range>{{0, 3}, {3, 5}}));  // rows [0, 5) of one half, [5, 10) of the other
    EXPECT_FALSE(way.rest());
  });
}

}  // namespace
}  // namespace tessera::ranks::exact_micro_batches_test
