// The `stock` generator draws plain libtorch's bits, from the same seed, in every layout: by operator, and over
// programs that mix them.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::stock_test {
namespace {

using dtensor::GeneratorKind;

constexpr uint64_t kSeed = 23;
const char* const kMeshes[] = {"a=1", "a=2", "a=3", "a=2,b=2"};

// The same text for tensors of one device and for DTensors.
using Draw = std::function<at::Tensor(at::Tensor x)>;

struct Named {
  const char* name;
  Draw draw;
  bool takes_integers = false;
};

at::Tensor normal_twice(at::Tensor x) {
  x.normal_(0, 1);
  const at::Tensor first = x.clone();
  x.normal_(0, 1);
  return first + x;
}

const std::vector<Named>& draws() {
  static const std::vector<Named> all = {
      {"uniform_", [](at::Tensor x) { return x.uniform_(-2, 3); }},
      {"normal_", [](at::Tensor x) { return x.normal_(1, 2); }},
      {"normal_ twice", normal_twice},
      {"exponential_", [](at::Tensor x) { return x.exponential_(2); }},
      {"log_normal_", [](at::Tensor x) { return x.log_normal_(); }},
      {"cauchy_", [](at::Tensor x) { return x.cauchy_(); }},
      {"geometric_", [](at::Tensor x) { return x.geometric_(0.4); }, true},
      {"bernoulli_(p)", [](at::Tensor x) { return x.bernoulli_(0.3); }, true},
      {"bernoulli_(tensor)", [](at::Tensor x) { return x.bernoulli_(at::full_like(x, 0.4)); }},
      {"bernoulli_(double tensor)", [](at::Tensor x) { return x.bernoulli_(at::full_like(x, 0.4, at::kDouble)); },
       true},
      {"bernoulli(tensor)", [](at::Tensor x) { return at::bernoulli(x.fill_(0.6)); }},
      {"bernoulli(x, p)", [](at::Tensor x) { return at::bernoulli(x, 0.3); }, true},
      {"random_", [](at::Tensor x) { return x.random_(); }, true},
      {"random_(n)", [](at::Tensor x) { return x.random_(10); }, true},
      {"random_(a, b)", [](at::Tensor x) { return x.random_(-5, 7); }, true},
      {"random_(wide)",
       [](at::Tensor x) { return x.scalar_type() == at::kLong ? x.random_(-5, int64_t{1} << 40) : x.random_(3); },
       true},
      {"rand_like", [](at::Tensor x) { return at::rand_like(x); }},
      {"randn_like", [](at::Tensor x) { return at::randn_like(x, at::kFloat); }, true},
      {"randn_like, contiguous",
       [](at::Tensor x) { return at::randn_like(x, x.options(), at::MemoryFormat::Contiguous); }},
      {"randint_like", [](at::Tensor x) { return at::randint_like(x, 10); }, true},
      {"randint_like(a, b)", [](at::Tensor x) { return at::randint_like(x, 3, 9, at::kLong); }, true},
      {"dropout", [](at::Tensor x) { return at::dropout(x.fill_(3), 0.4, true); }},
      {"dropout_", [](at::Tensor x) { return at::dropout_(x.fill_(3), 0.4, true); }},
      {"dropout in eval", [](at::Tensor x) { return at::dropout(x.fill_(3), 0.4, false); }},
      {"native_dropout", [](at::Tensor x) { return std::get<0>(at::native_dropout(x.fill_(3), 0.4, true)); }},
      {"native_dropout in eval", [](at::Tensor x) { return std::get<0>(at::native_dropout(x.fill_(3), 0.4, false)); }},
      {"native_dropout mask", [](at::Tensor x) { return std::get<1>(at::native_dropout(x, 0.4, true)); }},
      {"alpha_dropout", [](at::Tensor x) { return at::alpha_dropout(x.fill_(3), 0.4, true); }},
      {"plain noise",
       [](at::Tensor x) { return x.fill_(1) + torch::randn(x.sizes(), at::kDouble) + torch::randint(5, x.sizes()); },
       true},
      {"plain fills",
       [](at::Tensor x) {
         return x.fill_(1) + at::empty(x.sizes(), at::kFloat).normal_() + at::rand_like(at::empty({7, 3}).t()).sum();
       }},
  };
  return all;
}

// How a tensor is made of one of the given sizes, its memory laid out in another order.
struct Form {
  const char* name;
  Sizes sizes;
  std::function<at::Tensor(at::Tensor x)> view;
};

const std::vector<Form>& forms() {
  const auto same = [](at::Tensor x) { return x; };
  const auto turned = [](at::Tensor x) { return x.t(); };
  static const std::vector<Form> all = {{"even", {12, 4}, same},
                                        {"uneven", {5, 7}, same},
                                        {"long", {3, 700}, same},
                                        {"a block and a rest", {17}, same},
                                        {"short", {6}, same},
                                        {"empty", {0, 4}, same},
                                        {"0-d", {}, same},
                                        {"one", {1}, same},
                                        {"3-d", {3, 2, 5}, same},
                                        {"transposed", {6, 4}, turned},
                                        {"turned", {5, 7}, turned},
                                        {"permuted", {4, 3, 5}, [](at::Tensor x) { return x.permute({2, 0, 1}); }},
                                        {"columns", {6, 8}, [](at::Tensor x) { return x.slice(1, 2, 6); }},
                                        {"a row", {4, 20}, [](at::Tensor x) { return x.select(0, 1); }}};
  return all;
}

constexpr c10::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};

bool fits(const Named& one, c10::ScalarType dtype) { return dtype != at::kLong || one.takes_integers; }

struct Result {
  at::Tensor value;
  at::Tensor filled;  // all the memory that the view shows part of
  at::Tensor state;
};

// Plain libtorch, whose generator the process has one of.
Result plain(const Named& one, const Form& form, c10::ScalarType dtype) {
  at::manual_seed(kSeed);
  at::rand({3});
  at::randn({1});  // leaves a normal waiting
  at::Tensor base = at::zeros(form.sizes, dtype);
  at::Tensor value = one.draw(form.view(base)).clone();
  return {value, base.clone(), at::detail::getDefaultCPUGenerator().get_state()};
}

TEST(Stock, IsPlainLibtorchInEveryLayout) {
  at::NoGradGuard no_grad;
  for (const c10::ScalarType dtype : kDtypes) {
    for (const Form& form : forms()) {
      std::vector<Result> expected;
      for (const Named& one : draws()) {
        expected.push_back(fits(one, dtype) ? plain(one, form, dtype) : Result());
      }
      for (const char* text : kMeshes) {
        const Mesh mesh = Mesh::parse(text);
        run_on(mesh, [&](int64_t rank) {
          at::NoGradGuard inside;
          dtensor::set_generator(GeneratorKind::kStock);
          size_t turn = 0;
          for (const Placements& placements : plain_layouts(mesh, static_cast<int64_t>(form.sizes.size()))) {
            ++turn;
            for (size_t i = 0; i < draws().size(); ++i) {
              const Named& one = draws()[i];
              if (!fits(one, dtype) || (mesh.ndim() > 1 && !is_full() && (i + turn) % 3 != 0)) {
                continue;
              }
              dtensor::manual_seed(kSeed);
              at::rand({3});
              at::randn({1});
              at::Tensor base = distribute(at::zeros(form.sizes, dtype), mesh, placements);
              const at::Tensor value = full_tensor(one.draw(form.view(base)));
              const auto where = [&] {
                return c10::str(one.name, " ", dtype, " ", form.name, " ", layout::str(mesh, placements), " on ", text,
                                ", rank ", rank);
              };
              // (The mask of an empty native_dropout has its input's dtype in libtorch, else bool.)
              EXPECT_TRUE(value.numel() == 0 || value.dtype() == expected[i].value.dtype()) << where();
              EXPECT_TRUE(at::equal(value, expected[i].value)) << where() << "\n" << value << "\n" << expected[i].value;
              EXPECT_TRUE(at::equal(full_tensor(base), expected[i].filled)) << where();
              EXPECT_TRUE(at::equal(dtensor::stock_generator().get_state(), expected[i].state)) << where();
            }
          }
        });
      }
    }
  }
}

const std::vector<Named>& value_draws() {
  static const std::vector<Named> all = {
      {"multinomial with replacement", [](at::Tensor p) { return at::multinomial(p, 30, true); }},
      {"multinomial", [](at::Tensor p) { return at::multinomial(p, 3, false); }},
      {"multinomial of one", [](at::Tensor p) { return at::multinomial(p, 1, false); }},
      {"multinomial, turned", [](at::Tensor p) { return at::multinomial(p.t(), 2, false); }},
      {"poisson", [](at::Tensor p) { return at::poisson(p); }},
      {"normal(mean)", [](at::Tensor p) { return at::normal(p, 2.0); }},
      {"normal(mean, std)", [](at::Tensor p) { return at::normal(p, p); }},
      {"bernoulli", [](at::Tensor p) { return at::bernoulli(p.clamp(0, 1)); }},
      {"randperm", [](at::Tensor p) { return p + at::randperm(p.size(1)); }},
      {"permuted rows", [](at::Tensor p) { return p.index_select(0, at::randperm(p.size(0))); }},
  };
  return all;
}

// What each makes of `x` in every layout is what plain libtorch makes of it.
void expect_draws(const std::vector<Named>& all, const at::Tensor& x) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> expected;
  for (const Named& one : all) {
    at::manual_seed(kSeed);
    expected.push_back(one.draw(x.clone()));
  }
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      at::NoGradGuard inside;
      dtensor::set_generator(GeneratorKind::kStock);
      for (const Placements& placements :
           every_layout(mesh, 2, {layout::Replicate(), layout::Shard(0), layout::Shard(1)})) {
        for (size_t i = 0; i < all.size(); ++i) {
          dtensor::manual_seed(kSeed);
          const at::Tensor found = full_tensor(all[i].draw(distribute(x.clone(), mesh, placements)));
          EXPECT_TRUE(at::equal(found, expected[i]))
              << all[i].name << layout::str(mesh, placements) << " on " << text << "\n"
              << found << expected[i];
        }
      }
    });
  }
}

TEST(Stock, DrawsAccordingToValues) {
  for (const c10::ScalarType dtype : {at::kFloat, at::kDouble}) {
    expect_draws(value_draws(), (waves({4, 6}) + 1.1).to(dtype));
  }
}

const std::vector<Named>& initialisers() {
  namespace init = torch::nn::init;
  static const std::vector<Named> all = {
      {"uniform_", [](at::Tensor x) { return init::uniform_(x, -1, 1); }},
      {"normal_", [](at::Tensor x) { return init::normal_(x, 1, 0.02); }},
      {"orthogonal_", [](at::Tensor x) { return init::orthogonal_(x, 1.5); }},
      {"sparse_", [](at::Tensor x) { return init::sparse_(x, 0.4, 0.1); }},
      {"xavier_uniform_", [](at::Tensor x) { return init::xavier_uniform_(x); }},
      {"xavier_normal_", [](at::Tensor x) { return init::xavier_normal_(x, 2); }},
      {"kaiming_uniform_", [](at::Tensor x) { return init::kaiming_uniform_(x, std::sqrt(5)); }},
      {"kaiming_normal_", [](at::Tensor x) { return init::kaiming_normal_(x, 0, torch::kFanOut, torch::kReLU); }},
      {"a column", [](at::Tensor x) { return x.select(1, 1).normal_(), x.slice(1, 2).uniform_(), x; }},
      {"truncated", [](at::Tensor x) { return x.normal_(0, 2).clamp_(-1, 1); }},
  };
  return all;
}

TEST(Stock, EveryInitialiserInEveryLayout) {
  for (const Sizes& sizes : {Sizes{6, 4}, Sizes{20, 9}}) {
    expect_draws(initialisers(), at::zeros(sizes));
  }
}

struct Shared {
  at::Tensor like(c10::IntArrayRef sizes, c10::ScalarType dtype) const {
    const at::Tensor plain = at::zeros(sizes, dtype);
    return mesh ? distribute(plain, *mesh, (*layouts)[static_cast<size_t>(at++) % layouts->size()]) : plain;
  }
  const Mesh* mesh = nullptr;
  const std::vector<Placements>* layouts = nullptr;
  mutable int64_t at = 0;
};

// A program of mixed draws, with its stream saved, forked and taken back. `generator` is the one it draws from.
std::vector<at::Tensor> mixed_program(const Shared& make, at::Generator generator) {
  std::vector<at::Tensor> seen;
  for (int round = 0; round < 4; ++round) {
    const at::Tensor saved = generator.get_state();
    at::Tensor forked;
    for (size_t i = static_cast<size_t>(round); i < draws().size(); i += 3) {
      const c10::ScalarType dtype = i % 2 == 0 ? at::kFloat : at::kDouble;
      seen.push_back(full_tensor(draws()[i].draw(make.like({5, 3 + static_cast<int64_t>(i)}, dtype))));
      if (i % 5 == 0) {
        forked = generator.get_state();
      }
    }
    if (round == 1) {
      generator.set_state(saved);  // again
    }
    if (round == 2 && forked.defined()) {
      generator.set_state(forked);
    }
    at::Generator own = generator.clone();  // a fork that goes its own way
    seen.push_back(full_tensor(make.like({7, 6}, at::kFloat).normal_(0, 1, own)));
    seen.push_back(full_tensor(make.like({7, 6}, at::kDouble).uniform_(0, 1, own)));
  }
  seen.push_back(generator.get_state());
  return seen;
}

TEST(Stock, StaysInStepOverMixedPrograms) {
  at::NoGradGuard no_grad;
  at::manual_seed(kSeed);
  const std::vector<at::Tensor> expected = mixed_program({}, at::detail::getDefaultCPUGenerator());
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    const auto layouts = every_layout(mesh, 2, {layout::Replicate(), layout::Shard(0), layout::Shard(1)});
    run_on(mesh, [&](int64_t) {
      at::NoGradGuard inside;
      dtensor::manual_seed(kSeed);  // before the choice: either order
      dtensor::set_generator(GeneratorKind::kStock);
      const std::vector<at::Tensor> found = mixed_program({&mesh, &layouts}, dtensor::stock_generator());
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i << " on " << text;
      }
    });
  }
}

TEST(Stock, RecomputationDrawsAgain) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    dtensor::set_generator(GeneratorKind::kStock);
    at::Tensor grads[2], states[2];
    for (const bool again : {false, true}) {
      dtensor::manual_seed(kSeed);
      const at::Tensor x = distribute(waves({6, 5}), mesh, "{a: S(1)}").requires_grad_();
      const auto body = [](const std::vector<at::Tensor>& in) {
        return at::dropout(at::dropout(in[0], 0.3, true).tanh(), 0.3, true);
      };
      const at::Tensor y = again ? dtensor::recompute(body, {x}) : body({x});
      at::rand({3});
      y.square().sum().backward();
      grads[again] = full_tensor(x.grad());
      states[again] = dtensor::stock_generator().get_state();
    }
    EXPECT_TRUE(at::equal(grads[0], grads[1]));
    EXPECT_TRUE(at::equal(states[0], states[1]));
  });
}

// The control: another seed, another order and the other generator give other bits.
TEST(Stock, IsNotTheCounter) {
  const Mesh mesh = Mesh::parse("a=2");
  at::manual_seed(kSeed);
  const at::Tensor plain = at::randn({40});
  run_on(mesh, [&](int64_t) {
    const auto draw = [&](uint64_t seed) {
      dtensor::manual_seed(seed);
      return full_tensor(distribute(at::zeros({40}), mesh, "{a: S(0)}").normal_());
    };
    EXPECT_FALSE(at::equal(draw(kSeed), plain));
    dtensor::set_generator(GeneratorKind::kStock);
    EXPECT_TRUE(at::equal(draw(kSeed), plain));
    EXPECT_FALSE(at::equal(draw(kSeed + 1), plain));
    dtensor::manual_seed(kSeed);
    at::rand({1});
    EXPECT_FALSE(at::equal(full_tensor(distribute(at::zeros({40}), mesh, "{a: S(0)}").normal_()), plain));
    dtensor::set_generator(GeneratorKind::kCounter);
    EXPECT_FALSE(at::equal(draw(kSeed), plain));
  });
}

TEST(Stock, MistakesSayWhatToDo) {
  EXPECT_SAYS(failure_on(2, [](int64_t) { dtensor::stock_generator(); }), "set_generator");
  EXPECT_SAYS(failure_on(2,
                         [](int64_t) {
                           set_generator(GeneratorKind::kStock);
                           deferred([] { return at::normal(torch::rand({4}), 1.0); });
                         }),
              "values");
  EXPECT_SAYS(
      failure_on(2,
                 [](int64_t) {
                   deferred([] { return at::normal(torch::rand({4}), 1.0, at::detail::createCPUGenerator(3)); });
                 }),
      "values");
}

// Ranks whose streams have parted are told so, not given values of different programs.
TEST(Stock, RanksThatPartAreFound) {
  EXPECT_NE(failure_on(2,
                       [](int64_t rank) {
                         set_generator(GeneratorKind::kStock);
                         if (rank == 1) {
                           at::rand({1});
                         }
                         full_tensor(distribute(at::zeros({4}), Mesh::parse("a=2"), "{a: S(0)}").normal_());
                       }),
            "");
}

}  // namespace
}  // namespace tessera::ranks::stock_test
