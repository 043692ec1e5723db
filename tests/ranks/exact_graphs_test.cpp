// Gradients in `exact` numerics through graphs of many kinds: shared and computed weights, norms, second derivatives,
// recomputation, losses by hand, operators without kernels of their own.
#include "tests/ranks/exact_program.h"

namespace tessera::ranks::exact_graphs_test {
namespace {

TEST(ExactGraphs, ParametersUsedMoreThanOnce) {
  check("twice", [](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      net.loss_of(at::linear(at::linear(at::linear(batch.x, w).tanh(), w), v), batch.y).backward();
    });
    world.keep("w", w.grad()), world.keep("v", v.grad());
  });
  check("three times, once transposed", [](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor h = at::linear(at::linear(batch.x, w).tanh(), w);
      net.loss_of(at::linear(at::matmul(h, w), v), batch.y).backward();
    });
    world.keep("w", w.grad()), world.keep("v", v.grad());
  });
  check("lookup and head", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}, layout::Shard(0, {.unit = 2}));
    Net net(world);
    world.each_batch(
        [&](const Batch& batch) { net.loss_of(at::linear(at::embedding(w, batch.y).tanh(), w), batch.y).backward(); });
    world.keep("w", w.grad());
  });
}

// The classes' logits from the input by one product with `weight(w)`.
Program product_with(const std::function<at::Tensor(World&, const at::Tensor& w)>& weight, std::vector<int64_t> sizes) {
  return [=](World& world) {
    const at::Tensor w = world.parameter("w", sizes);
    Net net(world);
    world.each_batch(
        [&](const Batch& batch) { net.loss_of(at::linear(batch.x, weight(world, w)), batch.y).backward(); });
    world.keep("w", w.grad());
  };
}

TEST(ExactGraphs, ThroughFunctionsOfAWeight) {
  check("t", product_with([](World&, const at::Tensor& w) { return w.t(); }, {kWidth, kClasses}));
  check("view",
        product_with([](World&, const at::Tensor& w) { return w.view({kClasses, kWidth}); }, {kClasses * kWidth}));
  check("scalar", product_with([](World&, const at::Tensor& w) { return w * 0.7 / 3; }, {kClasses, kWidth}));
  check("negative", product_with([](World&, const at::Tensor& w) { return -w; }, {kClasses, kWidth}));
  check("slice",
        product_with([](World&, const at::Tensor& w) { return w.slice(0, 3, 3 + kClasses); }, {2 * kClasses, kWidth}));
  check("select", product_with([](World&, const at::Tensor& w) { return w.select(0, 1); }, {2, kClasses, kWidth}));
  check("chunks", [](World& world) {
    const at::Tensor w = world.parameter("w", {2 * kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const auto parts = w.chunk(2);
      net.loss_of(at::linear(batch.x, parts[0]).tanh() + at::linear(batch.x, parts[1]), batch.y).backward();
    });
    world.keep("w", w.grad());
  });
}

// Derivatives that multiply the gradient by another value: once, when the samples of the step are there.
TEST(ExactGraphs, ThroughFunctionsThatReadOtherValues) {
  check("cast",
        product_with([](World&, const at::Tensor& w) { return w.to(at::kFloat).to(at::kDouble); }, {kClasses, kWidth}));
  check("tanh", product_with([](World&, const at::Tensor& w) { return w.tanh(); }, {kClasses, kWidth}));
  check("square", product_with([](World&, const at::Tensor& w) { return w * w; }, {kClasses, kWidth}));
  check("twice", product_with([](World&, const at::Tensor& w) { return w + w; }, {kClasses, kWidth}));
  check("outer sum",
        product_with([](World&, const at::Tensor& w) { return w.slice(1, 0, 1) + w.slice(1, 1, 1 + kWidth); },
                     {kClasses, 1 + kWidth}));
  check("product of weights", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(batch.x, w * v), batch.y).backward(); });
    world.keep("w", w.grad()), world.keep("v", v.grad());
  });
  check("low rank", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}), a = world.parameter("a", {kClasses, 4}),
                     b = world.parameter("b", {4, kWidth});
    Net net(world);
    world.each_batch(
        [&](const Batch& batch) { net.loss_of(at::linear(batch.x, w + 0.5 * at::matmul(a, b)), batch.y).backward(); });
    world.keep("w", w.grad()), world.keep("a", a.grad()), world.keep("b", b.grad());
  });
  check("weight norm", [](World& world) {
    const at::Tensor g = world.parameter("g", {kClasses, 1}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      net.loss_of(at::linear(batch.x, v * (g / v.square().sum({1}, true).sqrt())), batch.y).backward();
    });
    world.keep("g", g.grad()), world.keep("v", v.grad());
  });
}

// What the derivative reads is what it was in the forward pass, though an optimizer wrote to it before the gradient was
// read.
TEST(ExactGraphs, ThroughAWeightThatWasUpdatedSince) {
  check("product of weights", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    torch::optim::SGD optimizer({w, v}, torch::optim::SGDOptions(0.1));
    for (int64_t step = 0; step < 2; ++step) {
      world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(batch.x, w * v), batch.y).backward(); });
      optimizer.step();
      optimizer.zero_grad();
    }
    world.keep("w", w), world.keep("v", v);
  });
}

// A factor that another micro-batch does not have.
TEST(ExactGraphs, ThroughValuesThatChangeWithinTheStepIsRefused) {
  check(
      "changing",
      [](World& world) {
        const at::Tensor w = world.parameter("w", {kClasses, kWidth});
        const at::Tensor v = distribute(values({kClasses, kWidth}, 9), world.mesh, Placements(world.mesh.ndim()));
        Net net(world);
        world.each_batch([&](const Batch& batch) {
          net.loss_of(at::linear(batch.x, w * (v + static_cast<double>(batch.index))), batch.y).backward();
        });
        world.keep("w", w.grad());
      },
      Refuses::kCuts, "values that differ from micro-batch to micro-batch");
}

TEST(ExactGraphs, OfNorms) {
  check("layer norm", [](World& world) {
    const at::Tensor g = world.parameter("g", {kWidth}), b = world.parameter("b", {kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor x = at::layer_norm(batch.x, {kWidth}, g, b);
      net.loss_of(at::linear(net.hidden(x), net.w2), batch.y).backward();
    });
    world.keep("g", g.grad()), world.keep("b", b.grad());
    net.keep_gradients();
  });
  check("rms norm", [](World& world) {
    const at::Tensor g = world.parameter("g", {kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor x = batch.x * (batch.x.square().mean({-1}, true) + 1e-6).rsqrt() * g;
      net.loss_of(at::linear(net.hidden(x), net.w2), batch.y).backward();
    });
    world.keep("g", g.grad());
    net.keep_gradients();
  });
}

// A function of the step's gradient: one micro-batch only.
TEST(ExactGraphs, TwiceDifferentiated) {
  check(
      "penalty",
      [](World& world) {
        Net net(world);
        world.each_batch([&](const Batch& batch) {
          const auto gradients =
              torch::autograd::grad({net.loss(batch)}, {net.w1}, {}, /*retain_graph=*/true, /*create_graph=*/true);
          gradients[0].square().sum().backward();
        });
        net.keep_gradients();
      },
      Refuses::kCuts, "a derivative reads the gradient of");
}

TEST(ExactGraphs, Recomputed) {
  check("recompute", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor h =
          dtensor::recompute([&](const std::vector<at::Tensor>& in) { return net.hidden(in[0]); }, {batch.x});
      net.loss_of(at::linear(h, net.w2), batch.y).backward();
    });
    net.keep_gradients();
  });
}

// What the tokens at `ids` say of all samples together: nobody knows which sample a row is of.
TEST(ExactGraphs, RowsThatLostTheirSamples) {
  check(
      "rows",
      [](World& world) {
        Net net(world);
        world.each_batch([&](const Batch& batch) {
          const at::Tensor ids = at::arange(batch.x.size(0) * kLength).flip(0).remainder(batch.x.size(0) * kLength - 1);
          const at::Tensor rows = at::index(batch.x.flatten(0, 1), {ids}),
                           targets = at::index(batch.y.flatten(), {ids});
          at::cross_entropy_loss(at::linear(at::linear(rows, net.w1, net.b1).tanh(), net.w2), targets, {},
                                 at::Reduction::Sum)
              .backward();
        });
        net.keep_gradients();
      },
      Refuses::kCuts, "lost its samples");
}

TEST(ExactGraphs, TwoLossesOverOneTrunk) {
  check("two backwards", [](World& world) {
    Net net(world);
    const at::Tensor v = world.parameter("v", {kClasses, kHidden}, layout::Shard(1));
    world.each_batch([&](const Batch& batch) {
      const at::Tensor h = net.hidden(batch.x);
      net.loss_of(at::linear(h, net.w2), batch.y).backward({}, /*retain_graph=*/true);
      net.loss_of(at::linear(h, v), batch.y).backward();
    });
    net.keep_gradients();
    world.keep("v", v.grad());
  });
  check("their sum", [](World& world) {
    Net net(world);
    const at::Tensor v = world.parameter("v", {kClasses, kHidden}, layout::Shard(1));
    world.each_batch([&](const Batch& batch) {
      const at::Tensor h = net.hidden(batch.x);
      (net.loss_of(at::linear(h, net.w2), batch.y) + net.loss_of(at::linear(h, v), batch.y) * 0.5).backward();
    });
    net.keep_gradients();
    world.keep("v", v.grad());
  });
}

// Products by their names, and operators that only have a form for one sample.
TEST(ExactGraphs, OtherOperators) {
  const auto with = [](const std::function<at::Tensor(const Net&, const at::Tensor& x)>& logits) {
    return [=](World& world) {
      Net net(world);
      world.each_batch([&](const Batch& batch) { net.loss_of(logits(net, batch.x), batch.y).backward(); });
      net.keep_gradients();
    };
  };
  check("addmm", with([](const Net& net, const at::Tensor& x) {
          return at::linear(at::addmm(net.b1, x.flatten(0, 1), net.w1.t()).tanh().view({x.size(0), x.size(1), kHidden}),
                            net.w2);
        }));
  check("mm", with([](const Net& net, const at::Tensor& x) {
          return at::mm((at::mm(x.flatten(0, 1), net.w1.t()) + net.b1).tanh(), net.w2.t())
              .view({x.size(0), x.size(1), kClasses});
        }));
  check("einsum", with([](const Net& net, const at::Tensor& x) {
          return at::einsum("bsh,ch->bsc", {(at::einsum("bsf,hf->bsh", {x, net.w1}) + net.b1).tanh(), net.w2});
        }));
  check("heads", [](World& world) {  // the rows of w's gradient stand around its columns
    const at::Tensor w = world.parameter("w", {2, kWidth, 5});
    world.each_batch(
        [&](const Batch& batch) { (at::einsum("bsk,hkd->bhsd", {batch.x, w}).square().sum() / 480).backward(); });
    world.keep("w", w.grad());
  });
  check("softplus", with([](const Net& net, const at::Tensor& x) {
          return at::linear(at::softplus(at::linear(x, net.w1, net.b1)), net.w2);
        }));
  check("elu, mish", with([](const Net& net, const at::Tensor& x) {
          return at::mish(at::linear(at::elu(at::linear(x, net.w1, net.b1)), net.w2));
        }));
  check("power, log1p", with([](const Net& net, const at::Tensor& x) {
          return at::linear((at::linear(x, net.w1, net.b1).square() + 0.5).pow(0.7).log1p(), net.w2);
        }));
  check("cumulative sum",
        with([](const Net& net, const at::Tensor& x) { return at::linear(net.hidden(x).cumsum(1), net.w2); }));
  check("deviation", with([](const Net& net, const at::Tensor& x) {
          const at::Tensor h = net.hidden(x);
          return at::linear(h / (h.var(-1, false, true) + 0.1), net.w2);
        }));
}

TEST(ExactGraphs, LossesByHand) {
  check("sum of squares", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { (net.hidden(batch.x).square().sum() / 384).backward(); });
    world.keep("w1", net.w1.grad()), world.keep("b1", net.b1.grad());
  });
  check(
      "mean over the micro-batch",
      [](World& world) {
        Net net(world);
        world.each_batch([&](const Batch& batch) { net.hidden(batch.x).square().mean().backward(); });
        world.keep("w1", net.w1.grad());
      },
      Refuses::kCuts);
}

TEST(ExactGraphs, SamplesInTheInnermostDim) {
  check("sum", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.hidden(batch.x).permute({1, 2, 0}).square().sum().backward(); });
    world.keep("w1", net.w1.grad());
  });
}

// Of [positions, 1, features] that become [positions, features] nobody can say where the one sample went.
void check_but_for_single_samples(const Program& program) {
  const Outcome whole = run_program(program, kWhole, Numerics::kExact, {});
  EXPECT_EQ(difference(whole, whole), "");
  for (const Cell& cell : {Cell{"dp=2", {3}}, Cell{"dp=3", {2}}, Cell{"tp=2", {6}}, Cell{"dp=2,tp=2", {3}},
                           Cell{"1", {3, 3}}, Cell{"tp=2", {2, 4}}, Cell{"dp=2", {1, 2}}}) {
    EXPECT_EQ(difference(run_program(program, cell, Numerics::kExact, {}), whole), "") << cell.str();
  }
  EXPECT_SAYS(run_program(program, {"1", {3, 1, 2}}, Numerics::kExact, {}).error, "numerics exact");
}

// As torch's own transformer layers do.
TEST(ExactGraphs, PositionsBeforeSamples) {
  check_but_for_single_samples([](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth}, layout::Shard(0)), b = world.parameter("b", {kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor rows = at::linear(batch.x.transpose(0, 1).flatten(0, 1), w, b);
      net.loss_of(at::linear(net.hidden(rows.unflatten(0, {kLength, -1}).transpose(0, 1)), net.w2), batch.y).backward();
    });
    world.keep("w", w.grad()), world.keep("b", b.grad());
    net.keep_gradients();
  });
  check_but_for_single_samples([](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      net.loss_of(at::linear(net.hidden(batch.x), net.w2).transpose(0, 1), batch.y.t()).backward();
    });
    net.keep_gradients();
  });
  check("apart", [](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth}, layout::Shard(0)), b = world.parameter("b", {kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor rows = at::linear(batch.x.transpose(0, 1), w, b);
      net.loss_of(at::linear(net.hidden(rows.transpose(0, 1)), net.w2), batch.y).backward();
    });
    world.keep("w", w.grad()), world.keep("b", b.grad());
  });
}

// Parameters that no plan knows: rows may be cut, but what a product sums may not.
TEST(ExactGraphs, PlainTensorsAsParameters) {
  check("plain", [](World& world) {
    const at::Tensor w =
        distribute(values({kClasses, kWidth}, 5) / 3, world.mesh, world.on("tp", layout::Shard(0, {.unit = 2})))
            .requires_grad_(true);
    world.each_batch([&](const Batch& batch) {
      at::cross_entropy_loss(at::linear(batch.x, w).flatten(0, 1), batch.y.flatten()).backward();
    });
    world.keep("w", w.grad());
  });
}

// A lookup by index, whose gradient libtorch writes into zeros.
TEST(ExactGraphs, LookupsByIndex) {
  check("rows", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}, layout::Shard(0, {.unit = 2}));
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor places = at::arange(-kLength, 0).remainder(3);
      net.loss_of(at::linear(net.hidden(batch.x + w.index({batch.y - kClasses}) + w.index({places})), net.w2), batch.y)
          .backward();
    });
    world.keep("w", w.grad());
    net.keep_gradients();
  });
}

// The same along an inner dim, of a parameter, of a vector and of activations; some are read twice, one never.
TEST(ExactGraphs, LookupsByIndexAlongInnerDims) {
  const auto index_of = [](const at::Tensor& ids) { return at::indexing::TensorIndex(ids); };
  check("parameters", [&](World& world) {
    const at::Tensor w = world.parameter("w", {3, kClasses, kWidth}, layout::Shard(0)), v = world.parameter("v", {3});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor ids = at::arange(-kLength, 0).remainder(3) - 2;
      const at::Tensor rows = w.index({Slice(), index_of(ids)}), scales = v.index({index_of(ids)});
      net.loss_of(at::linear(net.hidden(batch.x + rows.sum(0) * scales.unsqueeze(1)), net.w2), batch.y).backward();
    });
    world.keep("w", w.grad()), world.keep("v", v.grad());
    net.keep_gradients();
  });
  check("activations", [&](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor ids = at::arange(kHidden) * 3 % (kHidden - 1), places = at::tensor({1, 0, 3, 3});
      const at::Tensor h =
          net.hidden(batch.x).index({Slice(), index_of(places)}).index({Slice(), Slice(), index_of(ids)});
      net.loss_of(at::linear(h, net.w2), batch.y).backward();
    });
    net.keep_gradients();
  });
}

// Sums over two dims of which neither has samples: a table of distances between positions, and a product over both dims
// of two functions of parameters, cut along either.
TEST(ExactGraphs, SumsOverSeveralDims) {
  check("distances", [](World& world) {
    const at::Tensor w = world.parameter("w", {5, kWidth}, layout::Shard(1));
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor places = at::arange(kLength), distances = places.unsqueeze(1) - places + kLength - 1;
      const at::Tensor mixed = at::einsum("qkw,bkw->bqw", {at::embedding(w, distances.clamp_max(4)), batch.x});
      net.loss_of(at::linear(net.hidden(mixed), net.w2), batch.y).backward();
    });
    world.keep("w", w.grad());
    net.keep_gradients();
  });
  for (const int64_t dim : {0, 1}) {
    check(dim == 0 ? "first" : "second", [dim](World& world) {
      const at::Tensor u = world.parameter("u", {8, 16, kWidth}, layout::Shard(dim)),
                       v = world.parameter("v", {8, 16, kHidden}, layout::Shard(dim));
      Net net(world);
      world.each_batch([&](const Batch& batch) {
        const at::Tensor added = at::einsum("abw,abh->hw", {u.tanh(), v.sin()});
        net.loss_of(at::linear(at::linear(batch.x, net.w1 + added, net.b1).tanh(), net.w2), batch.y).backward();
      });
      world.keep("u", u.grad()), world.keep("v", v.grad());
      net.keep_gradients();
    });
  }
}

// A row that pads gets no gradient, whichever rank holds it.
TEST(ExactGraphs, LookupsWithARowForPadding) {
  check("padding", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}, layout::Shard(0, {.unit = 2}));
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      net.loss_of(at::linear(at::embedding(w, batch.y, /*padding_idx=*/3), w.detach()), batch.y).backward();
    });
    world.keep("w", w.grad());
    EXPECT_TRUE(full_tensor(w.grad())[3].eq(0).all().item<bool>());
    EXPECT_FALSE(full_tensor(w.grad())[4].eq(0).any().item<bool>());
  });
}

}  // namespace
}  // namespace tessera::ranks::exact_graphs_test
