// Gradients in `exact` numerics, as programs use them: on every layout and for every cut of the step into micro-batches the
// bits of one rank that sees all samples at once, or a refusal that says what would work.
#include <mutex>

#include <torch/torch.h>

#include "tessera/base/hash.h"
#include "tests/ranks/support.h"

namespace tessera::ranks {
namespace {

using dtensor::Numerics;
using dtensor::RankState;
using layout::Label;
using layout::Lattice;
using torch::indexing::Slice;

constexpr int64_t kSamples = 6, kLength = 4, kWidth = 8, kHidden = 16, kClasses = 10;

// A layout and the sizes of the micro-batches that each data-parallel rank makes of its samples.
struct Cell {
  const char* mesh;
  std::vector<int64_t> cuts;
  std::string str() const { return c10::str(mesh, " in ", c10::Join("+", cuts)); }
};

const Cell kWhole = {"1", {6}};
const std::vector<Cell> kLayouts = {{"dp=2", {3}}, {"tp=2", {6}}, {"tp=4", {6}}, {"dp=2,tp=2", {3}}, {"dp=3", {2}}};
const std::vector<Cell> kCuts = {{"1", {3, 3}},    {"1", {2, 2, 2}}, {"1", {1, 3, 2}}, {"1", {1, 1, 1, 1, 1, 1}}, {"dp=2", {1, 2}},
                                 {"tp=2", {1, 3, 2}}, {"dp=2,tp=2", {2, 1}}, {"dp=2", {1, 1, 1}}};

// Deterministic values of both signs over some binary orders.
at::Tensor values(c10::IntArrayRef sizes, int64_t salt) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kLong) * 2654435761 + salt * 40503 + 7;
  const at::Tensor mantissa = index.remainder(100003).to(at::kDouble) / 50001.5 - 1;
  return (mantissa * (index.floor_divide(64) + salt).remainder(5).sub(2).to(at::kDouble).exp2()).reshape(sizes);
}

struct Batch {
  at::Tensor x, y;  // [samples, length, width], [samples, length]
  int64_t index = 0;
  bool is_last = false;
};

// What a program sees: its rank's mesh, parameters and micro-batches, and where it leaves its results.
class World {
 public:
  World(const Cell& cell, Numerics numerics) : mesh(Mesh::parse(cell.mesh)), cell_(cell), numerics_(numerics) {}

  const Mesh mesh;
  std::map<std::string, at::Tensor> results;
  at::ScalarType dtype = at::kDouble;
  bool begins_passes = true;

  Placements on(const char* axis, Placement placement) const {
    Placements placements(mesh.ndim());
    if (const auto index = mesh.find_axis(axis)) placements[*index] = placement;
    return placements;
  }

  at::Tensor parameter(const std::string& name, c10::IntArrayRef sizes, Placement on_tp = layout::Replicate()) {
    at::Tensor result = distribute(values(sizes, static_cast<int64_t>(name.back())).to(dtype) / 3, mesh, on("tp", on_tp)).set_requires_grad(true);
    auto& known = RankState::require().parameters;
    known.push_back({name, base::hash_string(name), {}, {}});
    dtensor::meta_of(result)->parameter = &known.back();
    return result;
  }

  void each_batch(const std::function<void(const Batch&)>& body) {
    int64_t begin = 0;
    for (size_t i = 0; i < cell_.cuts.size(); begin += cell_.cuts[i++]) {
      if (numerics_ == Numerics::kExact && begins_passes) RankState::require().sites.begin_pass();
      body(batch(static_cast<int64_t>(i), begin, cell_.cuts[i]));
    }
  }

  bool is_cut() const { return cell_.cuts.size() > 1; }

  void keep(const std::string& name, const at::Tensor& tensor) { results[name] = full_tensor(tensor.detach()).clone(); }

 private:
  // Rows [begin, begin + size) of every rank's block of samples.
  Batch batch(int64_t index, int64_t begin, int64_t size) const {
    const auto axis = mesh.find_axis("dp");
    const int64_t blocks = axis ? mesh.axis(*axis).size : 1;
    const at::Tensor x = values({kSamples, kLength, kWidth}, 3).to(dtype), y = values({kSamples, kLength}, 4).abs().mul(1000).to(at::kLong).remainder(kClasses);
    std::vector<at::Tensor> xs, ys;
    std::vector<dtensor::Origin::Piece> pieces;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t sample = block * kSamples / blocks + begin;
      pieces.push_back({block * size, sample});
      xs.push_back(x.narrow(0, sample, size));
      ys.push_back(y.narrow(0, sample, size));
    }
    return {labelled(at::cat(xs), pieces), labelled(at::cat(ys), pieces), index, index + 1 == static_cast<int64_t>(cell_.cuts.size())};
  }

  at::Tensor labelled(const at::Tensor& rows, std::vector<dtensor::Origin::Piece> pieces) const {
    layout::Labels labels(rows.dim());
    labels[0] = {{.label = Label::kBatch, .extent = rows.size(0), .total = kSamples}};
    labels[1] = {{.label = Label::kSequence, .extent = kLength, .total = kLength}};
    return dtensor::with_labels(distribute(rows, mesh, on("dp", layout::Shard(0))), labels, dtensor::Origin::make(std::move(pieces)));
  }

  Cell cell_;
  Numerics numerics_;
};

using Program = std::function<void(World&)>;

struct Outcome {
  std::map<std::string, at::Tensor> results;
  std::string error;
};

Outcome run_program(const Program& program, const Cell& cell, Numerics numerics, const Lattice& lattice) {
  Outcome outcome;
  std::mutex mutex;
  outcome.error = failure_on(Mesh::parse(cell.mesh).size(), [&](int64_t rank) {
    dtensor::manual_seed(11);
    dtensor::set_numerics(numerics, lattice);
    World world(cell, numerics);
    program(world);
    const std::lock_guard lock(mutex);
    if (rank == 0) outcome.results = world.results;
  });
  return outcome;
}

// The first result that differs, or is not a number.
std::string difference(const Outcome& found, const Outcome& expected) {
  if (!found.error.empty()) return found.error;
  for (const auto& [name, value] : expected.results) {
    const auto other = found.results.find(name);
    if (other == found.results.end()) return name + " is missing";
    if (value.isnan().any().item<bool>()) return name + " is not a number";
    const int64_t differ = value.ne(other->second).sum().item<int64_t>();
    if (differ > 0) return c10::str(name, ": ", differ, " of ", value.numel(), " elements differ");
  }
  return "";
}

// Whether micro-batches, or everything, are refused.
enum class Refuses : uint8_t { kNothing, kCuts, kAll };

void check(const char* name, const Program& program, Refuses refuses = Refuses::kNothing, const char* words = "numerics exact") {
  SCOPED_TRACE(name);
  for (const Lattice& lattice : {Lattice{2, 1, 8}, Lattice{8, 2, 8}}) {
    const Outcome whole = run_program(program, kWhole, Numerics::kExact, lattice);
    if (refuses == Refuses::kAll) {
      EXPECT_SAYS(whole.error, words);
      continue;
    }
    EXPECT_EQ(difference(whole, whole), "");
    if (!whole.error.empty()) continue;
    // Three ranks cut the finer lattice only; of the other cells it takes every third.
    const bool is_fine = lattice.sequence > 1;
    size_t index = 0;
    const auto is_left_out = [&](const Cell& cell) { return std::string(cell.mesh) == "dp=3" ? !is_fine : is_fine && index++ % 3 != 1 && !is_full(); };
    for (const Cell& cell : kLayouts) {
      if (is_left_out(cell)) continue;
      EXPECT_EQ(difference(run_program(program, cell, Numerics::kExact, lattice), whole), "") << cell.str() << ", lattice " << lattice.str();
    }
    for (const Cell& cell : kCuts) {
      if (is_left_out(cell)) continue;
      const Outcome found = run_program(program, cell, Numerics::kExact, lattice);
      if (refuses == Refuses::kCuts) {
        EXPECT_SAYS(found.error, words) << cell.str();
      } else {
        EXPECT_EQ(difference(found, whole), "") << cell.str() << ", lattice " << lattice.str();
      }
    }
    if (is_fine) continue;
    // The same training as in `fast`.
    const Outcome fast = run_program(program, kWhole, Numerics::kFast, lattice);
    EXPECT_EQ(fast.error, "");
    for (const auto& [key, value] : fast.results) {
      EXPECT_LE(error_of(whole.results.at(key), value), value.scalar_type() == at::kDouble ? 1e-12 : 1e-4) << key;
    }
  }
}

// A two-layer net with a cross entropy over 24 tokens.
struct Net {
  explicit Net(World& world)
      : world(world), w1(world.parameter("w1", {kHidden, kWidth}, layout::Shard(0))), b1(world.parameter("b1", {kHidden}, layout::Shard(0))),
        w2(world.parameter("w2", {kClasses, kHidden}, layout::Shard(1))) {}

  at::Tensor hidden(const at::Tensor& x) const { return at::linear(x, w1, b1).tanh(); }
  at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& y) const { return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten()); }
  at::Tensor loss(const Batch& batch) const { return loss_of(at::linear(hidden(batch.x), w2), batch.y); }
  std::vector<at::Tensor> parameters() const { return {w1, b1, w2}; }

  void backward(const std::function<void(const Batch&)>& after = {}) {
    world.each_batch([&](const Batch& batch) {
      loss(batch).backward();
      if (after) after(batch);
    });
  }

  void keep(const std::string& suffix = "") const {
    world.keep("w1" + suffix, w1), world.keep("b1" + suffix, b1), world.keep("w2" + suffix, w2);
  }
  void keep_gradients(const std::string& suffix = "") const {
    world.keep("gradient of w1" + suffix, w1.grad()), world.keep("gradient of b1" + suffix, b1.grad()), world.keep("gradient of w2" + suffix, w2.grad());
  }

  World& world;
  at::Tensor w1, b1, w2;
};

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

TEST(ExactGradients, TakenByGrad) {
  check("grad()", [](World& world) {
    Net net(world);
    std::vector<at::Tensor> sums(3);
    world.each_batch([&](const Batch& batch) {
      const auto gradients = torch::autograd::grad({net.loss(batch)}, net.parameters());
      for (size_t i = 0; i < 3; ++i) sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i];
    });
    for (size_t i = 0; i < 3; ++i) world.keep(std::to_string(i), sums[i]);
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
    train(world, [](const Net& net) { return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)); });
  });
  check("AdamW", [&](World& world) {
    train(world, [](const Net& net) { return std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(0.01)); });
  });
  check("RMSprop", [&](World& world) {
    train(world, [](const Net& net) { return std::make_unique<torch::optim::RMSprop>(net.parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.5)); });
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

TEST(ExactGradients, ParametersUsedMoreThanOnce) {
  check("twice", [](World& world) {
    const at::Tensor w = world.parameter("w", {kWidth, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(at::linear(at::linear(batch.x, w).tanh(), w), v), batch.y).backward(); });
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
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(at::embedding(w, batch.y).tanh(), w), batch.y).backward(); });
    world.keep("w", w.grad());
  });
}

// The classes' logits from the input by one product with `weight(w)`.
Program product_with(const std::function<at::Tensor(World&, const at::Tensor& w)>& weight, std::vector<int64_t> sizes) {
  return [=](World& world) {
    const at::Tensor w = world.parameter("w", sizes);
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(batch.x, weight(world, w)), batch.y).backward(); });
    world.keep("w", w.grad());
  };
}

TEST(ExactGradients, ThroughFunctionsOfAWeight) {
  check("t", product_with([](World&, const at::Tensor& w) { return w.t(); }, {kWidth, kClasses}));
  check("view", product_with([](World&, const at::Tensor& w) { return w.view({kClasses, kWidth}); }, {kClasses * kWidth}));
  check("scalar", product_with([](World&, const at::Tensor& w) { return w * 0.7 / 3; }, {kClasses, kWidth}));
  check("negative", product_with([](World&, const at::Tensor& w) { return -w; }, {kClasses, kWidth}));
  check("slice", product_with([](World&, const at::Tensor& w) { return w.slice(0, 3, 3 + kClasses); }, {2 * kClasses, kWidth}));
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

// Derivatives that multiply the gradient by another value need that of the whole step.
TEST(ExactGradients, ThroughFunctionsThatReadOtherValues) {
  const char* const kPartOfStep = "a derivative reads the gradient of";
  check("cast", product_with([](World&, const at::Tensor& w) { return w.to(at::kFloat).to(at::kDouble); }, {kClasses, kWidth}));
  check("tanh", product_with([](World&, const at::Tensor& w) { return w.tanh(); }, {kClasses, kWidth}), Refuses::kCuts, kPartOfStep);
  check("product of weights", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, kWidth}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(batch.x, w * v), batch.y).backward(); });
    world.keep("w", w.grad()), world.keep("v", v.grad());
  }, Refuses::kCuts, kPartOfStep);
  check("matrices", [](World& world) {
    const at::Tensor w = world.parameter("w", {kClasses, 4}), v = world.parameter("v", {4, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.loss_of(at::linear(batch.x, at::matmul(w, v)), batch.y).backward(); });
    world.keep("w", w.grad()), world.keep("v", v.grad());
  }, Refuses::kCuts, kPartOfStep);
  check("weight norm", [](World& world) {
    const at::Tensor g = world.parameter("g", {kClasses, 1}), v = world.parameter("v", {kClasses, kWidth});
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      net.loss_of(at::linear(batch.x, v * (g / v.square().sum({1}, true).sqrt())), batch.y).backward();
    });
    world.keep("g", g.grad()), world.keep("v", v.grad());
  }, Refuses::kCuts, kPartOfStep);
}

TEST(ExactGradients, OfNorms) {
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

TEST(ExactGradients, TwiceDifferentiated) {
  check("penalty", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const auto gradients = torch::autograd::grad({net.loss(batch)}, {net.w1}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      gradients[0].square().sum().backward();
    });
    net.keep_gradients();
  }, Refuses::kAll, "twice to one gradient");
}

TEST(ExactGradients, Recomputed) {
  check("recompute", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const at::Tensor h = dtensor::recompute([&](const std::vector<at::Tensor>& in) { return net.hidden(in[0]); }, {batch.x});
      net.loss_of(at::linear(h, net.w2), batch.y).backward();
    });
    net.keep_gradients();
  });
}

TEST(ExactGradients, TwoLossesOverOneTrunk) {
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
  }, Refuses::kAll, "Of two losses over one trunk take the backward of their sum");
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

TEST(ExactGradients, SamplesAddedTwiceAreRefused) {
  check("the step twice", [](World& world) {
    Net net(world);
    net.backward();
    net.backward();
  }, Refuses::kAll, "twice to one gradient");
}

TEST(ExactGradients, LossesByHand) {
  check("sum of squares", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { (net.hidden(batch.x).square().sum() / 384).backward(); });
    world.keep("w1", net.w1.grad()), world.keep("b1", net.b1.grad());
  });
  check("mean over the micro-batch", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.hidden(batch.x).square().mean().backward(); });
    world.keep("w1", net.w1.grad());
  }, Refuses::kCuts);
}

// Limits, by the refusal that says so.
TEST(ExactGradients, RefusedForms) {
  check("a product whose rows stand around its columns", [](World& world) {
    const at::Tensor w = world.parameter("w", {2, kWidth, 5});
    world.each_batch([&](const Batch& batch) { at::einsum("bsk,hkd->bhsd", {batch.x, w}).square().sum().backward(); });
  }, Refuses::kAll);
  check("samples in the innermost dim of a sum", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { net.hidden(batch.x).permute({1, 2, 0}).square().sum().backward(); });
  }, Refuses::kAll);
  check("samples in the slower part of no dim", [](World& world) {
    Net net(world);
    world.each_batch([&](const Batch& batch) { at::cross_entropy_loss(at::linear(net.hidden(batch.x), net.w2).transpose(0, 1).flatten(0, 1), batch.y.t().flatten()).backward(); });
  }, Refuses::kAll);
}

// Parameters that no plan knows: rows may be cut, but what a product sums may not.
TEST(ExactGradients, PlainTensorsAsParameters) {
  check("plain", [](World& world) {
    const at::Tensor w = distribute(values({kClasses, kWidth}, 5) / 3, world.mesh, world.on("tp", layout::Shard(0, {.unit = 2}))).requires_grad_(true);
    world.each_batch([&](const Batch& batch) { at::cross_entropy_loss(at::linear(batch.x, w).flatten(0, 1), batch.y.flatten()).backward(); });
    world.keep("w", w.grad());
  });
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
  check("loop", [](World& world) {
    Net net(world);
    world.begins_passes = false;
    net.backward();
    net.keep_gradients();
  }, Refuses::kCuts, "run the step as a job");
}

}  // namespace
}  // namespace tessera::ranks
