// Convolutions and normalisation by channels in `exact` numerics: any sizes, any layout, and in networks that are
// trained.
#include <random>

#include "tests/ranks/exact_program.h"

namespace tessera::ranks::exact_images_test {
namespace {

using Ints = std::vector<int64_t>;

struct Geometry {
  Ints input, weight, stride, padding, dilation, extra;
  bool transposed = false;
  int64_t groups = 1;

  int64_t channels() const { return transposed ? weight[1] * groups : weight[0]; }
  at::Tensor run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) const {
    return at::convolution(x, w, b, stride, padding, dilation, transposed, extra, groups);
  }
  std::string str() const {
    return c10::str(input, " x ", weight, " stride ", stride, " padding ", padding, " dilation ", dilation,
                    transposed ? " transposed " : " ", extra, " groups ", groups);
  }
};

// One to three dims of places, of sizes at which windows fit.
Geometry random_geometry(std::mt19937& random) {
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  Geometry geometry;
  geometry.transposed = pick(0, 1) == 1;
  geometry.groups = pick(0, 1) == 1 ? 1 : pick(2, 4);
  const int64_t in = pick(1, 3), out = pick(1, 3);
  geometry.input = {pick(1, 5), in * geometry.groups};
  geometry.weight = geometry.transposed ? Ints{in * geometry.groups, out} : Ints{out * geometry.groups, in};
  for (int64_t dims = pick(1, 3); dims > 0; --dims) {
    const int64_t kernel = pick(1, 3), padding = pick(0, kernel - 1), dilation = pick(1, 2), stride = pick(1, 3);
    geometry.weight.push_back(kernel);
    geometry.input.push_back(pick(1, 5) + (geometry.transposed ? 2 * padding : dilation * (kernel - 1)));
    geometry.padding.push_back(padding), geometry.dilation.push_back(dilation), geometry.stride.push_back(stride);
    geometry.extra.push_back(geometry.transposed ? pick(0, std::max(stride, dilation) - 1) : 0);
  }
  return geometry;
}

using Values = std::vector<at::Tensor>;  // the result, and the gradients of input, weight and bias

Values derivatives(const Geometry& geometry, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  for (const at::Tensor& leaf : {x, w, b}) {
    leaf.requires_grad_();
  }
  const at::Tensor y = geometry.run(x, w, b);
  y.backward(y.detach());
  return {y.detach(), x.grad(), w.grad(), b.grad()};
}

Values plain_derivatives(const Geometry& geometry) {
  return derivatives(geometry, values(geometry.input, 1), values(geometry.weight, 2), values({geometry.channels()}, 3));
}

// Samples on dp; channels of input and weight on tp as `cuts` say.
Values exact_derivatives(const Geometry& geometry, const Mesh& mesh, const std::vector<Placement>& cuts) {
  dtensor::set_numerics(Numerics::kExact);
  const auto on = [&](const char* axis, Placement placement, Placements placements) {
    if (const auto index = mesh.find_axis(axis)) {
      placements[*index] = placement;
    }
    return placements;
  };
  const Placements whole(mesh.ndim());
  const at::Tensor x =
      distribute(values(geometry.input, 1), mesh, on("dp", layout::Shard(0), on("tp", cuts[0], whole)));
  layout::Labels labels(x.dim());
  labels[0] = {{.label = Label::kBatch, .extent = x.size(0), .total = x.size(0)}};
  const auto found = derivatives(geometry, dtensor::with_labels(x, labels, nullptr),
                                 distribute(values(geometry.weight, 2), mesh, on("tp", cuts[1], whole)),
                                 distribute(values({geometry.channels()}, 3), mesh, on("tp", cuts[2], whole)));
  Values all;
  for (const at::Tensor& value : found) {
    all.push_back(full_tensor(value).clone());
  }
  return all;
}

TEST(ExactImages, ConvolutionsOfAnySizesHaveTheBitsOfOneRank) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::vector<Geometry> geometries(is_full() ? 200 : 40);
  for (Geometry& geometry : geometries) {
    geometry = random_geometry(random);
  }
  std::vector<Values> expected(geometries.size());
  run_on(Mesh(), [&](int64_t) {
    for (size_t i = 0; i < geometries.size(); ++i) {
      expected[i] = exact_derivatives(geometries[i], Mesh(), std::vector<Placement>(3));
    }
  });
  for (size_t i = 0; i < geometries.size(); ++i) {
    const Values plain = plain_derivatives(geometries[i]);
    for (size_t k = 0; k < plain.size(); ++k) {
      EXPECT_LE(error_of(expected[i][k], plain[k]), 1e-13) << geometries[i].str() << ", value " << k;
    }
  }
  for (const char* text : {"dp=2", "tp=2", "tp=3", "dp=3,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    const std::vector<Placement> choices = {layout::Replicate(), layout::Shard(0), layout::Shard(1)};
    std::vector<std::vector<Placement>> cuts;
    for (size_t i = 0; i < geometries.size(); ++i) {
      cuts.push_back({choices[random() % 2 * 2], choices[random() % 3], choices[random() % 2]});
    }
    run_on(mesh, [&](int64_t rank) {
      for (size_t i = 0; i < geometries.size(); ++i) {
        const Values found = exact_derivatives(geometries[i], mesh, cuts[i]);
        if (rank != 0) {
          continue;
        }
        for (size_t k = 0; k < found.size(); ++k) {
          EXPECT_TRUE(at::equal(found[k], expected[i][k]))
              << geometries[i].str() << " on " << text << ", input " << cuts[i][0].str() << ", weight "
              << cuts[i][1].str() << ", bias " << cuts[i][2].str() << ", value " << k;
        }
      }
    });
  }
}

// The classes' logits of samples from what a network makes of [samples, length, width].
struct Network {
  Network(World& world, int64_t features)
      : world(world), head(world.parameter("head", {kClasses, features}, layout::Shard(0, {.unit = 2}))) {}

  void train(const std::function<at::Tensor(const at::Tensor& x)>& body) {
    world.each_batch([&](const Batch& batch) {
      at::cross_entropy_loss(at::linear(body(batch.x).flatten(1), head), batch.y.select(1, 0)).backward();
    });
    world.keep("head", head.grad());
  }

  World& world;
  at::Tensor head;
};

TEST(ExactImages, SequencesOfChannels) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    check(c10::toString(dtype), [=](World& world) {
      world.dtype = dtype;
      const at::Tensor w = world.parameter("w", {8, kLength, 3}, layout::Shard(0)),
                       b = world.parameter("b", {8}, layout::Shard(0));
      const at::Tensor grouped = world.parameter("grouped", {8, 2, 3}, layout::Shard(0)),
                       wide = world.parameter("wide", {8, 4, 2}, layout::Shard(1));
      Network network(world, 4 * 10);
      network.train([&](const at::Tensor& x) {
        const at::Tensor h = at::conv1d(x, w, b, /*stride=*/1, /*padding=*/1).tanh();
        const at::Tensor u = at::conv1d(h, grouped, {}, /*stride=*/2, /*padding=*/2, /*dilation=*/2, /*groups=*/4);
        return at::conv_transpose1d(u, wide, {}, /*stride=*/3, /*padding=*/1, /*output_padding=*/1).tanh();
      });
      world.keep("w", w.grad()), world.keep("b", b.grad()), world.keep("grouped", grouped.grad()),
          world.keep("wide", wide.grad());
    });
  }
}

TEST(ExactImages, Planes) {
  check("planes", [](World& world) {
    const at::Tensor w = world.parameter("w", {4, 1, 3, 2}, layout::Shard(0)),
                     b = world.parameter("b", {4}, layout::Shard(0));
    const at::Tensor mix = world.parameter("mix", {6, 4, 1, 1}, layout::Shard(1));
    Network network(world, 6);
    network.train([&](const at::Tensor& x) {
      const at::Tensor h = at::relu(at::conv2d(x.unsqueeze(1), w, b, /*stride=*/1, /*padding=*/{1, 0}));
      return at::conv2d(at::avg_pool2d(at::max_pool2d(h, 2, 1), 2), mix).mean({2, 3});
    });
    world.keep("w", w.grad()), world.keep("b", b.grad()), world.keep("mix", mix.grad());
  });
}

// A transformer's tokens that a convolution cut out of images: their positions have no label, and lie whole on every
// rank.
Program tokens_with(Ints places) {
  return [=](World& world) {
    const at::Tensor w = world.parameter("w", {8, 1, 2, 2}, layout::Shard(0)),
                     mix = world.parameter("mix", {16, 8}, layout::Shard(0));
    const at::Tensor where = world.parameter("where", places);
    Network network(world, 16);
    network.train([&](const at::Tensor& x) {
      const at::Tensor tokens = at::conv2d(x.unsqueeze(1), w, {}, /*stride=*/2).flatten(2).transpose(1, 2) + where;
      return at::linear(tokens, mix).tanh().mean(1);
    });
    world.keep("w", w.grad()), world.keep("mix", mix.grad()), world.keep("where", where.grad());
  };
}

TEST(ExactImages, PatchesAsTokens) { check("patches", tokens_with({8, 8})); }

// libtorch spreads a dim of one element over samples, and adds its gradient up, only where there is more than one
// sample.
TEST(ExactImages, AParameterWithADimForSamplesNeedsTwoOfThem) {
  const Program program = tokens_with({1, 8, 8});
  const Outcome whole = run_program(program, kWhole, Numerics::kExact, {});
  EXPECT_EQ(difference(whole, whole), "");
  for (const Cell& cell : {Cell{"1", {3, 3}}, Cell{"dp=2", {3}}, Cell{"dp=2", {1, 2}}, Cell{"tp=2", {2, 2, 2}}}) {
    EXPECT_EQ(difference(run_program(program, cell, Numerics::kExact, {}), whole), "") << cell.str();
  }
  for (const Cell& cell :
       {Cell{"1", {1, 3, 2}}, Cell{"1", {3, 1, 2}}, Cell{"1", {5, 1}}, Cell{"tp=2", {1, 1, 1, 1, 1, 1}}}) {
    EXPECT_SAYS(run_program(program, cell, Numerics::kExact, {}).error, "leave that dim out of the parameter")
        << cell.str();
  }
}

// A batch norm of the samples' channels (positions, here).
Program normalised(bool training) {
  return [=](World& world) {
    const at::Tensor w = world.parameter("w", {4, kLength, 3}, layout::Shard(0)), scale = world.parameter("scale", {4}),
                     shift = world.parameter("shift", {4});
    const Placements whole(world.mesh.ndim());
    const at::Tensor mean = distribute(values({4}, 5), world.mesh, whole),
                     variance = distribute(values({4}, 6).square() + 1, world.mesh, whole);
    Network network(world, 4 * 6);
    network.train([&](const at::Tensor& x) {
      return at::batch_norm(at::conv1d(x, w), scale, shift, mean, variance, training, /*momentum=*/0.1, /*eps=*/1e-5,
                            /*cudnn_enabled=*/false)
          .tanh();
    });
    world.keep("w", w.grad()), world.keep("scale", scale.grad()), world.keep("shift", shift.grad());
    world.keep("mean", mean), world.keep("variance", variance);
  };
}

TEST(ExactImages, BatchNormReadsRunningStatistics) { check("evaluation", normalised(false)); }

// Statistics of a micro-batch would be others than those of the step.
TEST(ExactImages, BatchNormTakesStatisticsOfTheWholeStep) {
  check("training", normalised(true), Refuses::kCuts, "aten::native_batch_norm called like this");
}

}  // namespace
}  // namespace tessera::ranks::exact_images_test
