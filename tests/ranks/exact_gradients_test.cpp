// Gradients in `exact` numerics, as programs use them: left in `.grad`, read, scaled, clipped, written to, stepped
// with.
#include "tests/ranks/exact_program.h"

namespace tessera::ranks::exact_gradients_test {
namespace {

TEST(ExactGradients, LeftInGrad) {
  check("grad", [](World& world) {
    Net net(world);
    net.backward();
    net.keep_gradients();
  });
  check("float32", [](World& world) {
    world.dtype = at::kFloat;
    Net net(world);
    net.backward();
    net.keep_gradients();
  });
}

TEST(ExactGradients, HooksThatScaleAndRead) {
  check("scale", [](World& world) {
    Net net(world);
    net.w1.register_hook([](const at::Tensor& g) { return g * 0.3; });
    net.w2.register_hook([](const at::Tensor& g) { return -g / 3; });
    net.backward();
    net.keep_gradients();
  });
  check("read", [](World& world) {
    Net net(world);
    double seen = 0;
    net.w1.register_hook([&](const at::Tensor& g) { seen += g.norm().item<double>(); });
    net.backward();
    net.keep_gradients();
    EXPECT_GT(seen, 0);
    EXPECT_FALSE(std::isnan(seen));
  });
}

// A hook that is not linear sees as many gradients as there are micro-batches, in plain libtorch too.
TEST(ExactGradients, HooksThatAreNotLinearAreRefused) {
  const char* const kPartOfStep = "from the gradient of some of the step's samples";
  check(
      "clamp",
      [](World& world) {
        Net net(world);
        net.w1.register_hook([](const at::Tensor& g) { return g.clamp(-0.01, 0.01); });
        net.backward();
        net.keep_gradients();
      },
      Refuses::kCuts, kPartOfStep);
  check(
      "norm",
      [](World& world) {
        Net net(world);
        net.w1.register_hook([](const at::Tensor& g) { return g / g.norm(); });
        net.backward();
        net.keep_gradients();
      },
      Refuses::kCuts, kPartOfStep);
  check(
      "in place",
      [](World& world) {
        Net net(world);
        net.w1.register_hook([](const at::Tensor& g) {
          g.clamp_(-0.01, 0.01);
          return g;
        });
        net.backward();
        net.keep_gradients();
      },
      Refuses::kCuts, kPartOfStep);
}

TEST(ExactGradients, TakenByGrad) {
  check("grad()", [](World& world) {
    Net net(world);
    std::vector<at::Tensor> sums(3);
    world.each_batch([&](const Batch& batch) {
      const auto gradients = torch::autograd::grad({net.loss(batch)}, net.parameters());
      for (size_t i = 0; i < 3; ++i) {
        sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i];
      }
    });
    for (size_t i = 0; i < 3; ++i) {
      world.keep(std::to_string(i), sums[i]);
    }
  });
}

TEST(ExactGradients, Clipped) {
  check("by norm", [](World& world) {
    Net net(world);
    net.backward();
    world.keep("norm", at::scalar_tensor(torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01), at::kDouble));
    net.keep_gradients();
  });
  check("by value", [](World& world) {
    Net net(world);
    net.backward();
    torch::nn::utils::clip_grad_value_(net.parameters(), 0.01);
    net.keep_gradients();
  });
}

TEST(ExactGradients, ReadBetweenMicroBatches) {
  check("read", [](World& world) {
    Net net(world);
    net.backward([&](const Batch&) {
      EXPECT_FALSE(std::isnan(net.w1.grad().norm().item<double>()));
      EXPECT_FALSE(full_tensor(net.w2.grad()).isnan().any().item<bool>());
      to_local(net.b1.grad()).clone();
      net.w2.grad().t().contiguous();
    });
    net.keep_gradients();
  });
}

// What a program writes through a view of a gradient reaches the gradient, and counts when more is added.
TEST(ExactGradients, WrittenThroughViews) {
  check("view", [](World& world) {
    Net net(world);
    net.backward();
    net.w1.grad().view({-1}).mul_(2);
    net.w2.grad().t().mul_(3);
    net.b1.grad().select(0, 1).zero_();
    net.keep_gradients();
    at::NoGradGuard no_grad;
    net.w1.grad().view({-1}).mul_(2);
    world.keep("twice", net.w1.grad());
  });
  check("to_local", [](World& world) {
    Net net(world);
    net.backward();
    to_local(net.w1.grad()).mul_(2);
    net.w1.grad().add_(net.w1.grad().clone());
    net.keep_gradients();
  });
  check("a write, then more", [](World& world) {
    Net net(world);
    net.backward();
    net.w1.grad().view({-1}).mul_(2);
    net.b1.mutable_grad().reset(), net.w2.mutable_grad().reset();
    net.backward();
    net.keep_gradients();
  });
}

TEST(ExactGradients, SetToZeroBetweenSteps) {
  for (bool to_none : {true, false}) {
    check(to_none ? "none" : "zero", [=](World& world) {
      Net net(world);
      torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
      for (int64_t step = 0; step < 2; ++step) {
        optimizer.zero_grad(to_none);
        net.backward();
        net.keep_gradients(std::to_string(step));
        optimizer.step();
      }
      net.keep();
    });
  }
}

TEST(ExactGradients, Optimizers) {
  const auto train = [](World& world, const std::function<std::unique_ptr<torch::optim::Optimizer>(const Net&)>& make) {
    Net net(world);
    const auto optimizer = make(net);
    for (int64_t step = 0; step < 2; ++step) {
      net.backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    net.keep();
  };
  check("SGD", [&](World& world) {
    train(world, [](const Net& net) {
      return std::make_unique<torch::optim::SGD>(net.parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    });
  });
  check("AdamW", [&](World& world) {
    train(world, [](const Net& net) {
      return std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(0.01));
    });
  });
  check("RMSprop", [&](World& world) {
    train(world, [](const Net& net) {
      return std::make_unique<torch::optim::RMSprop>(net.parameters(),
                                                     torch::optim::RMSpropOptions(0.01).momentum(0.5));
    });
  });
  check("plain", [](World& world) {
    Net net(world);
    for (int64_t step = 0; step < 2; ++step) {
      net.backward();
      at::NoGradGuard no_grad;
      for (const at::Tensor& w : net.parameters()) {
        const at::Tensor update = w.grad() / (w.grad().square().mean().sqrt() + 1e-3) + 0.01 * w;
        w.sub_(0.1 * update);
        w.mutable_grad().reset();
      }
    }
    net.keep();
  });
}

TEST(ExactGradients, SamplesAddedTwiceAreRefused) {
  check(
      "the step twice",
      [](World& world) {
        Net net(world);
        net.backward();
        net.backward();
      },
      Refuses::kAll, "twice to one gradient");
}

// A gradient that was made from a waiting one keeps its value when the other is written to.
TEST(ExactGradients, AWrittenGradientLeavesOthersAlone) {
  check("neg, then a write", [](World& world) {
    Net net(world);
    net.backward();
    const at::Tensor negative = net.w1.grad().neg();
    net.w1.mutable_grad().mul_(2);
    world.keep("negative", negative);
    world.keep("sum", negative * 2 + net.w1.grad());
    EXPECT_EQ(full_tensor(negative * 2 + net.w1.grad()).abs().max().item().toDouble(), 0);
  });
}

// A loop that does not say where a micro-batch begins.
TEST(ExactGradients, ALoopThatBeginsNoPassIsRefused) {
  check(
      "loop",
      [](World& world) {
        Net net(world);
        world.begins_passes = false;
        net.backward();
        net.keep_gradients();
      },
      Refuses::kCuts, "run the step as a job");
}

}  // namespace
}  // namespace tessera::ranks::exact_gradients_test
