// Random numbers of DTensors are those of a mesh of one, bit for bit: in every layout, for every generator of libtorch,
// in micro-batches and when a forward pass is run again.
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::random_test {
namespace {

using layout::Label;

const char* const kMeshes[] = {"a=2", "a=3", "a=4", "a=2,b=2"};

using Draw = std::function<at::Tensor(at::Tensor x)>;
using Draws = std::vector<std::pair<const char*, Draw>>;

at::Tensor probabilities(const at::Tensor& x) {
  return distribute(waves(x.sizes()).abs(), spec_of(x)->mesh, spec_of(x)->placements);
}

const Draws& draws() {
  static const Draws all = {
      {"uniform_", [](at::Tensor x) { return x.uniform_(); }},
      {"uniform_(-2, 3)", [](at::Tensor x) { return x.uniform_(-2, 3); }},
      {"normal_", [](at::Tensor x) { return x.normal_(1, 2); }},
      {"exponential_", [](at::Tensor x) { return x.exponential_(2); }},
      {"bernoulli_(p)", [](at::Tensor x) { return x.bernoulli_(0.3); }},
      {"bernoulli_(tensor)", [](at::Tensor x) { return x.bernoulli_(probabilities(x)); }},
      {"bernoulli(tensor)", [](at::Tensor x) { return at::bernoulli(probabilities(x)); }},
      {"bernoulli(x, p)", [](at::Tensor x) { return at::bernoulli(x, 0.3); }},
      {"log_normal_", [](at::Tensor x) { return x.log_normal_(0.5, 1); }},
      {"cauchy_", [](at::Tensor x) { return x.cauchy_(1, 2); }},
      {"geometric_", [](at::Tensor x) { return x.geometric_(0.3); }},
      {"random_", [](at::Tensor x) { return x.random_(); }},
      {"random_(n)", [](at::Tensor x) { return x.random_(10); }},
      {"random_(a, b)", [](at::Tensor x) { return x.random_(-5, 7); }},
      {"rand_like", [](at::Tensor x) { return at::rand_like(x); }},
      {"randn_like", [](at::Tensor x) { return at::randn_like(x, at::kFloat); }},
      {"randint_like", [](at::Tensor x) { return at::randint_like(x, 10); }},
      {"randint_like(a, b)", [](at::Tensor x) { return at::randint_like(x, 3, 9, at::kLong); }},
      {"dropout", [](at::Tensor x) { return at::dropout(x.fill_(3), 0.4, true); }},
      {"dropout_", [](at::Tensor x) { return at::dropout_(x.fill_(3), 0.4, true); }},
      {"dropout twice", [](at::Tensor x) { return at::dropout(at::dropout(x.fill_(3), 0.1, true), 0.1, true); }},
      {"native_dropout", [](at::Tensor x) { return std::get<0>(at::native_dropout(x.fill_(3), 0.4, true)); }},
      {"native_dropout mask", [](at::Tensor x) { return std::get<1>(at::native_dropout(x, 0.4, true)); }},
      {"feature_dropout", [](at::Tensor x) { return at::feature_dropout(x.fill_(3), 0.4, true); }},
      {"alpha_dropout", [](at::Tensor x) { return at::alpha_dropout(x.fill_(3), 0.4, true); }},
      {"view", [](at::Tensor x) { return x.view({-1}).normal_(), x; }},
      {"t", [](at::Tensor x) { return x.t().uniform_(), x; }},
      {"truncated", [](at::Tensor x) { return x.normal_(0, 2).clamp_(-1, 1); }},
      {"plain noise",
       [](at::Tensor x) { return x + torch::randn(x.sizes(), at::kDouble) + torch::randperm(x.size(1)); }},
  };
  return all;
}

// Of which how much is drawn depends on the values, or which value on those beside it.
const Draws& draws_by_values() {
  static const Draws all = {
      {"multinomial", [](at::Tensor x) { return at::multinomial(probabilities(x), 1); }},
      {"multinomial, several", [](at::Tensor x) { return at::multinomial(probabilities(x), 3); }},
      {"multinomial, replaced", [](at::Tensor x) { return at::multinomial(probabilities(x), 5, true); }},
      {"multinomial of one row", [](at::Tensor x) { return at::multinomial(probabilities(x).view({-1}), 5, true); }},
      {"normal of means", [](at::Tensor x) { return at::normal(probabilities(x), 2.0); }},
      {"normal of stds", [](at::Tensor x) { return at::normal(2.0, probabilities(x)); }},
      {"normal of both", [](at::Tensor x) { return at::normal(x.select(1, 0).unsqueeze(1), probabilities(x)); }},
      {"rrelu", [](at::Tensor x) { return at::rrelu(probabilities(x) - 0.5, 0.1, 0.9, true); }},
      {"rrelu_", [](at::Tensor x) { return at::rrelu_(probabilities(x).sub_(0.5), 0.1, 0.9, true); }},
      {"poisson", [](at::Tensor x) { return at::poisson(probabilities(x) * 20); }},
      {"poisson, turned", [](at::Tensor x) { return at::poisson((probabilities(x) * 20).t()); }},
      {"binomial", [](at::Tensor x) { return at::binomial(x.fill_(9).to(at::kDouble), probabilities(x)); }},
      {"gamma", [](at::Tensor x) { return at::_standard_gamma(probabilities(x)); }},
      {"dirichlet", [](at::Tensor x) { return at::_sample_dirichlet(probabilities(x) + 0.1); }},
  };
  return all;
}

const Draws& initialisers() {
  namespace init = torch::nn::init;
  static const Draws all = {
      {"uniform_", [](at::Tensor x) { return init::uniform_(x, -1, 1); }},
      {"normal_", [](at::Tensor x) { return init::normal_(x, 1, 0.02); }},
      {"constant_", [](at::Tensor x) { return init::constant_(x, 0.5); }},
      {"ones_", [](at::Tensor x) { return init::ones_(x); }},
      {"zeros_", [](at::Tensor x) { return init::zeros_(x.fill_(3)); }},
      {"eye_", [](at::Tensor x) { return init::eye_(x.fill_(3)); }},
      {"orthogonal_", [](at::Tensor x) { return init::orthogonal_(x, 1.5); }},
      {"sparse_", [](at::Tensor x) { return init::sparse_(x, 0.4, 0.1); }},
      {"xavier_uniform_", [](at::Tensor x) { return init::xavier_uniform_(x); }},
      {"xavier_normal_", [](at::Tensor x) { return init::xavier_normal_(x, 2); }},
      {"kaiming_uniform_", [](at::Tensor x) { return init::kaiming_uniform_(x, std::sqrt(5)); }},
      {"kaiming_normal_", [](at::Tensor x) { return init::kaiming_normal_(x, 0, torch::kFanOut, torch::kReLU); }},
      {"embedding",
       [](at::Tensor x) {
         init::normal_(x);
         x[1].fill_(0);  // what torch::nn::Embedding does for a padding index
         return x;
       }},
  };
  return all;
}

// The value on a mesh of one.
at::Tensor alone(const Draw& draw, const Sizes& sizes, c10::ScalarType dtype) {
  at::Tensor value;
  const Mesh one = Mesh::parse("a=1");
  run_on(one, [&](int64_t) {
    dtensor::manual_seed(11);
    at::NoGradGuard no_grad;
    value = full_tensor(draw(distribute(at::zeros(sizes, dtype), one, "{}")));
  });
  return value;
}

void expect_same_everywhere(const Draws& all, const Sizes& sizes, c10::ScalarType dtype) {
  std::vector<at::Tensor> expected;
  for (const auto& [name, draw] : all) {
    expected.push_back(alone(draw, sizes, dtype));
  }
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      at::NoGradGuard no_grad;
      for (const Placements& placements : plain_layouts(mesh, static_cast<int64_t>(sizes.size()))) {
        for (size_t i = 0; i < all.size(); ++i) {
          dtensor::manual_seed(11);
          const at::Tensor found = full_tensor(all[i].second(distribute(at::zeros(sizes, dtype), mesh, placements)));
          EXPECT_EQ(found.dtype(), expected[i].dtype()) << all[i].first;
          EXPECT_TRUE(at::equal(found, expected[i]))
              << all[i].first << c10::IntArrayRef(sizes) << layout::str(mesh, placements) << " on " << text << ", rank "
              << rank << "\n"
              << found << "\n"
              << expected[i];
        }
      }
    });
  }
}

TEST(Random, EveryGeneratorInEveryLayout) {
  expect_same_everywhere(draws(), {6, 4}, at::kDouble);
  expect_same_everywhere(draws(), {5, 3}, at::kFloat);
  expect_same_everywhere(draws(), {2, 3}, at::kDouble);
}

TEST(Random, DrawsByValuesInEveryLayout) {
  expect_same_everywhere(draws_by_values(), {6, 4}, at::kDouble);
  expect_same_everywhere(draws_by_values(), {5, 3}, at::kFloat);
}

TEST(Random, EmptyTensors) {
  for (const auto& [name, draw] : draws()) {
    if (std::string(name) != "feature_dropout") {
      expect_same_everywhere({{name, draw}}, {0, 4}, at::kDouble);
    }
  }
}

TEST(Random, IntegersOfEveryType) {
  const Draws some = {{"random_", [](at::Tensor x) { return x.random_(); }},
                      {"random_(a, b)", [](at::Tensor x) { return x.random_(1, 100); }},
                      {"randint_like", [](at::Tensor x) { return at::randint_like(x, 100); }}};
  for (c10::ScalarType dtype : {at::kLong, at::kInt, at::kShort, at::kByte}) {
    expect_same_everywhere(some, {5, 3}, dtype);
  }
}

TEST(Random, EveryInitialiserInEveryLayout) {
  expect_same_everywhere(initialisers(), {6, 4}, at::kDouble);
  expect_same_everywhere(initialisers(), {3, 5}, at::kFloat);
}

TEST(Random, DiracInEveryLayout) {
  expect_same_everywhere({{"dirac_", [](at::Tensor x) { return torch::nn::init::dirac_(x.fill_(2)); }}}, {4, 3, 3},
                         at::kDouble);
}

TEST(Random, EyeOfDTensors) {
  expect_same_everywhere({{"eye", [](at::Tensor x) { return at::eye_out(x, x.size(0), x.size(1)); }}}, {5, 4},
                         at::kDouble);
}

TEST(Random, OfPlainTensorsIsOneOnAllRanks) {
  const auto program = [] {
    const at::Tensor x = at::ones({3, 4}, at::kDouble);
    return std::vector<at::Tensor>{torch::randn({3, 4}),
                                   torch::rand({5}, at::kDouble),
                                   torch::randint(10, {6}),
                                   torch::randint(3, 9, {6}),
                                   torch::randperm(9),
                                   at::dropout(x, 0.5, true),
                                   at::bernoulli(x * 0.5),
                                   at::rand_like(x),
                                   at::randn_like(x),
                                   at::randint_like(x, 7),
                                   at::empty({4}).uniform_(),
                                   at::empty({4}).normal_(),
                                   at::empty({4}).exponential_(),
                                   at::empty({4}).random_(100),
                                   at::empty({4, 4}).t().uniform_(),
                                   at::empty({4, 4}).slice(1, 1, 3).normal_(),
                                   at::empty({4}).cauchy_(),
                                   at::empty({4}).geometric_(0.5),
                                   at::empty({4}).log_normal_(),
                                   at::multinomial(x, 2),
                                   at::multinomial(x, 9, true),
                                   at::normal(x, 1.0),
                                   at::normal(1.0, x),
                                   at::normal(x, x),
                                   at::poisson(x),
                                   at::binomial(x * 9, x * 0.5),
                                   at::_standard_gamma(x),
                                   at::_sample_dirichlet(x),
                                   at::rrelu(-x, 0.1, 0.9, true)};
  };
  std::vector<std::vector<at::Tensor>> found(6);
  for (int run = 0; run < 2; ++run) {
    comm::run_ranks(3, [&](int64_t rank) {
      dtensor::manual_seed(5);
      found[run * 3 + rank] = program();
    });
  }
  for (const auto& one : found) {
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(one[i], found[0][i])) << i;
    }
  }
  EXPECT_FALSE(at::equal(found[0][10], found[0][11]));
}

// Of 3 classes, one of which never comes; without replacement the second is drawn from those that are left.
TEST(Random, MultinomialHasTheProbabilitiesOfItsWeights) {
  constexpr int64_t kRows = 20000;
  const at::Tensor weights = at::tensor({1.0, 0.0, 3.0, 4.0}).expand({kRows, 4});
  const auto frequencies = [](const at::Tensor& classes) {
    return at::bincount(classes.reshape({-1}), {}, 4).to(at::kDouble) / classes.numel();
  };
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    for (const char* placements : {"{}", "{a: S(0)}", "{a: S(1)}"}) {
      const at::Tensor x = distribute(weights.contiguous(), mesh, placements);
      const at::Tensor expected = at::tensor({1.0, 0.0, 3.0, 4.0}, at::kDouble) / 8;
      const double bound = 5 * std::sqrt(0.25 / kRows);  // 5 standard deviations
      for (const at::Tensor& drawn : {at::multinomial(x, 1), at::multinomial(x, 2, true)}) {
        EXPECT_LT((frequencies(full_tensor(drawn)) - expected).abs().max().item<double>(), bound) << placements;
      }
      const at::Tensor pairs = full_tensor(at::multinomial(x, 2));
      EXPECT_FALSE(pairs.select(1, 0).eq(pairs.select(1, 1)).any().item<bool>());
      const auto probability = [](double a, double b) { return a / 8 * b / (8 - a); };
      EXPECT_NEAR(pairs.select(1, 0).eq(0).logical_and(pairs.select(1, 1).eq(3)).to(at::kDouble).mean().item<double>(),
                  probability(1, 4), bound);
      EXPECT_NEAR(pairs.select(1, 0).eq(3).logical_and(pairs.select(1, 1).eq(2)).to(at::kDouble).mean().item<double>(),
                  probability(4, 3), bound);
    }
  });
}

TEST(Random, WeightsThatAreNoneAreRefused) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto draw = [&](std::vector<double> weights, int64_t count, bool replacement) {
    return failure_on(
        2, [=](int64_t) { at::multinomial(distribute(at::tensor(weights), mesh, "{a: S(0)}"), count, replacement); });
  };
  EXPECT_SAYS(draw({1, -1}, 1, false), "below 0");
  EXPECT_SAYS(draw({1, NAN}, 1, false), "nan");
  EXPECT_SAYS(draw({1, INFINITY}, 1, false), "inf");
  EXPECT_SAYS(draw({0, 0}, 1, false), "all 0");
  EXPECT_SAYS(draw({1, 1}, 3, false), "3 samples without replacement of 2 classes");
  EXPECT_SAYS(draw({1, 1}, 0, true), "at least 1");
  EXPECT_SAYS(failure_on(2, [&](int64_t) { at::normal(0.0, distribute(at::tensor({1.0, -1.0}), mesh, "{a: S(0)}")); }),
              "below 0");
}

// The generator that a call names is obeyed: the bits of plain libtorch.
TEST(Random, OfAGeneratorThatIsNamed) {
  using Named = const std::optional<at::Generator>&;
  const std::vector<std::function<at::Tensor(at::Tensor, Named)>> draws = {
      [](at::Tensor x, Named g) { return x.uniform_(0, 1, g); },
      [](at::Tensor x, Named g) { return x.normal_(0, 1, g); },
      [](at::Tensor x, Named g) { return x.log_normal_(0, 1, g); },
      [](at::Tensor x, Named g) { return x.random_(7, g); },
      [](at::Tensor x, Named g) { return at::bernoulli(x.abs(), g); },
      [](at::Tensor x, Named g) { return at::bernoulli(x, 0.3, g); },
      [](at::Tensor x, Named g) { return at::multinomial(x.abs(), 2, false, g); },
      [](at::Tensor x, Named g) { return at::normal(x, 1.0, g); },
      [](at::Tensor x, Named g) { return at::poisson(x.abs() * 9, g); },
  };
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (size_t i = 0; i < draws.size(); ++i) {
    const auto program = [&](const at::Tensor& x) {
      const std::optional<at::Generator> generator = at::detail::createCPUGenerator(5);
      const at::Tensor first = draws[i](x.clone(), generator), second = draws[i](x.clone(), generator);
      return std::pair(first, second);
    };
    const auto expected = program(waves({5, 4}));
    run_on(mesh, [&](int64_t) {
      for (const Placements& placements : plain_layouts(mesh, 2)) {
        const auto found = program(distribute(waves({5, 4}), mesh, placements));
        EXPECT_TRUE(at::equal(full_tensor(found.first), expected.first)) << i << layout::str(mesh, placements);
        EXPECT_TRUE(at::equal(full_tensor(found.second), expected.second)) << i << layout::str(mesh, placements);
      }
    });
  }
}

TEST(Random, GradientsOfDrawsAreThoseOfOneDevice) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor x = distribute(waves({6, 4}), mesh, "{a: S(0)}").requires_grad_();
    const at::Tensor y = at::rrelu(x, 0.1, 0.9, true);
    y.sum().backward();
    const at::Tensor slope = full_tensor(y.detach()) / full_tensor(x.detach());
    EXPECT_TRUE(at::allclose(full_tensor(x.grad()), slope, 1e-12, 0));
    EXPECT_TRUE(slope.lt(1).any().item<bool>() && slope.ge(0.1).all().item<bool>());
  });
}

TEST(Random, AnotherSeedOrDrawMakesOtherValues) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const auto draw = [&](uint64_t seed) {
      dtensor::manual_seed(seed);
      return full_tensor(distribute(at::zeros({40}), mesh, "{a: S(0)}").uniform_());
    };
    EXPECT_TRUE(at::equal(draw(1), draw(1)));
    EXPECT_FALSE(at::equal(draw(1), draw(2)));
    EXPECT_FALSE(at::equal(draw(1), full_tensor(distribute(at::zeros({40}), mesh, "{a: S(0)}").uniform_())));
  });
}

// What a layer of a model draws: rows are samples, kept in front or folded with positions.
at::Tensor masks(const at::Tensor& batch) {
  const at::Tensor kept = at::dropout(batch, 0.5, true);
  const at::Tensor folded = at::dropout(kept.view({-1, kept.size(2)}), 0.2, true).view(kept.sizes());
  const at::Tensor turned = at::dropout(folded.transpose(0, 1), 0.2, true).transpose(0, 1);
  const at::Tensor weights = batch.abs().select(1, 0);
  const at::Tensor classes = at::cat({at::multinomial(weights, 1), at::multinomial(weights, 2, true)}, 1);
  return turned + at::rand_like(batch) + classes.unsqueeze(-1);
}

at::Tensor labelled(const at::Tensor& rows, const Mesh& mesh, const char* placements,
                    std::vector<dtensor::Origin::Piece> pieces, int64_t total) {
  layout::Labels labels(3);
  labels[0] = {{.label = Label::kBatch, .extent = rows.size(0), .total = total}};
  labels[1] = {{.label = Label::kSequence, .extent = rows.size(1), .total = rows.size(1)}};
  return dtensor::with_labels(distribute(rows, mesh, placements), labels, dtensor::Origin::make(std::move(pieces)));
}

TEST(Random, MicroBatchesDrawAsTheWholeBatch) {
  const at::Tensor batch = waves({6, 3, 4}) + 2;
  at::Tensor whole;
  const Mesh one = Mesh::parse("a=1");
  run_on(one, [&](int64_t) {
    dtensor::RankState::require().pass.sites.begin_pass();
    whole = full_tensor(masks(labelled(batch, one, "{}", {{0, 0}}, 6)));
  });
  const Mesh mesh = Mesh::parse("a=2,b=2");
  run_on(mesh, [&](int64_t) {
    auto& sites = dtensor::RankState::require().pass.sites;
    for (const char* placements : {"{a: S(0)}", "{a: S(1)}", "{a: S(0), b: S(2)}", "{a: S(0), b: S(1)}"}) {
      for (int64_t size : {6, 3, 2, 1}) {
        for (int64_t begin = 0; begin < 6; begin += size) {
          sites.begin_pass();
          const at::Tensor found =
              full_tensor(masks(labelled(batch.slice(0, begin, begin + size), mesh, placements, {{0, begin}}, 6)));
          EXPECT_TRUE(at::equal(found, whole.slice(0, begin, begin + size)))
              << placements << " " << size << " from " << begin;
        }
      }
    }
    // Two blocks of samples, each cut into micro-batches of its own.
    for (int64_t k = 0; k < 3; ++k) {
      sites.begin_pass();
      const at::Tensor rows = at::cat({batch.slice(0, k, k + 1), batch.slice(0, 3 + k, 4 + k)});
      const at::Tensor found = full_tensor(masks(labelled(rows, mesh, "{a: S(0)}", {{0, k}, {1, 3 + k}}, 6)));
      EXPECT_TRUE(at::equal(found, at::cat({whole.slice(0, k, k + 1), whole.slice(0, 3 + k, 4 + k)}))) << k;
    }
  });
  EXPECT_SAYS(
      failure_on(4,
                 [&](int64_t) { at::poisson(labelled(batch.abs().slice(0, 3, 6), mesh, "{a: S(0)}", {{0, 3}}, 6)); }),
      "one micro-batch");
}

// Draws are named by readings of parameters: whether the bias is added by the product's call or by one of its own.
TEST(Random, MasksAreTheSameWhereABiasIsAddedApart) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    auto& state = dtensor::RankState::require();
    at::Tensor w = distribute(waves({6, 6}), mesh, "{a: S(1)}"), bias = distribute(waves({6}), mesh, "{}");
    state.engine.parameters.add(w, {.name = "w", .site = 42, .input = {}, .output = {}});
    state.engine.parameters.add(bias, {.name = "b", .site = 43, .input = {}, .output = {}});
    const auto masks_of = [&](bool apart) {
      state.pass.sites.begin_pass();
      std::vector<at::Tensor> masks;
      at::Tensor x = distribute(waves({4, 6}), mesh, "{}");
      for (int i = 0; i < 2; ++i) {
        x = apart ? at::linear(x, w) + bias : at::linear(x, w, bias);
        masks.push_back(full_tensor(at::dropout(at::ones_like(x), 0.5, true)));
        x = at::linear(x, w);
        masks.push_back(full_tensor(at::dropout(at::ones_like(x), 0.5, true)));
      }
      return at::stack(masks);
    };
    EXPECT_TRUE(at::equal(masks_of(true), masks_of(false)));
  });
}

struct Trained {
  at::Tensor value, of_input, of_weight;
};

// A block with dropout on both sides of a parameter that is read twice; run as it is, or again in backward.
Trained block(const Mesh& mesh, const char* placements, bool again, int depth) {
  dtensor::manual_seed(3);
  auto& state = dtensor::RankState::require();
  const at::Tensor x = distribute(waves({4, 6}), mesh, placements).requires_grad_();
  at::Tensor w = distribute(waves({6, 6}, 0.71), mesh, "{a: S(0)}").requires_grad_();
  state.engine.parameters.add(w, {.name = "w", .site = 42, .input = {}, .output = {}});
  std::function<at::Tensor(const at::Tensor&, int)> layer = [&](const at::Tensor& t, int left) -> at::Tensor {
    const auto body = [&, left](const std::vector<at::Tensor>& in) {
      const at::Tensor y = at::dropout(at::linear(at::dropout(in[0], 0.3, true), w).tanh(), 0.3, true);
      return left == 0 ? y : layer(y, left - 1);
    };
    return again ? dtensor::recompute(body, {t}) : body({t});
  };
  const at::Tensor noise = at::rand_like(x);
  const at::Tensor y = layer(x + noise, depth);
  const at::Tensor after = at::dropout(at::linear(y, w), 0.3, true);
  after.square().sum().backward();
  return {full_tensor(after).detach(), full_tensor(x.grad()), full_tensor(w.grad())};
}

TEST(RecomputedDraws, MakesTheSameNumbers) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  run_on(mesh, [&](int64_t) {
    for (const char* placements : {"{}", "{a: S(0)}", "{b: S(1)}", "{a: P}"}) {
      for (int depth : {0, 1, 3}) {
        const Trained plain = block(mesh, placements, false, depth), again = block(mesh, placements, true, depth);
        EXPECT_TRUE(at::equal(plain.value, again.value)) << placements << depth;
        EXPECT_TRUE(at::equal(plain.of_input, again.of_input)) << placements << depth;
        EXPECT_LE(error_of(again.of_weight, plain.of_weight), depth == 0 ? 0 : 1e-14) << placements << depth;
      }
    }
  });
}

// Deeper than libtorch re-enters backward on one thread.
TEST(RecomputedDraws, SurvivesAPoolThread) {
  if (support::kHasThreadSanitizer) {
    GTEST_SKIP() << "the sanitizer does not see how libtorch hands a rank's pass to another thread and waits for it";
  }
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const Trained plain = block(mesh, "{a: S(0)}", false, 70), again = block(mesh, "{a: S(0)}", true, 70);
    EXPECT_TRUE(at::equal(plain.value, again.value));
    EXPECT_LE(error_of(again.of_input, plain.of_input), 1e-13);
  });
}

TEST(RecomputedDraws, GivesParametersTheirGradientsWhereNoInputHasOne) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor ids = distribute(at::arange(6), mesh, "{a: S(0)}");
    const at::Tensor table = distribute(integers({6, 4}), mesh, "{a: S(1)}").requires_grad_();
    dtensor::recompute([&](const std::vector<at::Tensor>& in) { return at::embedding(table, in[0]); }, {ids})
        .square()
        .sum()
        .backward();
    EXPECT_TRUE(at::equal(full_tensor(table.grad()), integers({6, 4}) * 2));
    at::NoGradGuard no_grad;
    EXPECT_FALSE(
        dtensor::recompute([&](const std::vector<at::Tensor>& in) { return in[0] * 2; }, {table}).requires_grad());
  });
}

// The masks of a pass whose gradients are taken after the next step's forward pass.
TEST(RecomputedDraws, BelongsToItsOwnStep) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    auto& sites = dtensor::RankState::require().pass.sites;
    const at::Tensor x = distribute(at::ones({6, 8}), mesh, "{a: S(0)}").requires_grad_();
    const auto pass = [&](uint64_t step, uint64_t evaluation) {
      sites.begin_step(step, evaluation);
      sites.begin_pass();
      return dtensor::recompute([](const std::vector<at::Tensor>& in) { return at::dropout(in[0], 0.5, true); }, {x});
    };
    const at::Tensor first = pass(1, 0), second = pass(2, 0), third = pass(2, 1), fourth = pass(2, 2);
    first.sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), full_tensor(first.detach())));
    EXPECT_EQ(sites.step(), 2u);
    EXPECT_EQ(sites.evaluation(), 2u);
    const std::vector<at::Tensor> all = {first, second, third, fourth};
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(at::equal(full_tensor(all[i].detach()), full_tensor(all[j].detach()))) << i << j;
      }
    }
  });
}

TEST(RecomputedDraws, RefusesToBeDifferentiatedTwice) {
  EXPECT_SAYS(failure_on(2,
                         [](int64_t) {
                           const at::Tensor x =
                               distribute(waves({4}), Mesh::parse("a=2"), "{a: S(0)}").requires_grad_();
                           const at::Tensor y =
                               dtensor::recompute([](const std::vector<at::Tensor>& in) { return in[0].sin(); }, {x});
                           torch::autograd::grad({y.sum()}, {x}, {}, true, true);
                         }),
              "recompute");
}

}  // namespace
}  // namespace tessera::ranks::random_test
