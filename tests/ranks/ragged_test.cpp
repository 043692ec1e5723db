// Cuts at given places: moved, computed with, trained, clipped and drawn, against one device.
#include <torch/torch.h>

#include "tests/ranks/adamw_by_operators.h"
#include "tests/ranks/support.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::ranks::ragged_test {
namespace {

using dtensor::GeneratorKind;
using dtensor::Numerics;
using layout::RaggedShard;
using layout::RandomLayouts;
using layout::Replicate;
using layout::Shard;
using Tensors = std::vector<at::Tensor>;

// The same draws on every rank.
class Ragged {
 public:
  Ragged(const Mesh& mesh, uint32_t seed) : mesh_(mesh), random_(seed) {}

  Placements placements(const Sizes& sizes, bool with_others = false) {
    Placements even = random_.placements(mesh_, static_cast<int64_t>(sizes.size()), with_others);
    return random_.with_ragged_cuts(mesh_, std::move(even), sizes);
  }

  // Every axis cuts dim 0, at given places or not.
  Placements rows(const Sizes& sizes) {
    return random_.with_ragged_cuts(mesh_, Placements(mesh_.ndim(), Shard(0)), sizes);
  }

  RandomLayouts& random() { return random_; }

 private:
  Mesh mesh_;
  RandomLayouts random_;
};

uint32_t new_seed() { return std::random_device{}(); }

std::string layout_of(const at::Tensor& x) { return spec_of(x).layout_str(); }

TEST(Ragged, PartsAreTheRowsThatItSays) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  const at::Tensor value = integers({8, 4});
  run_on(mesh, [&](int64_t rank) {
    const int64_t begins[] = {0, 3, 3}, sizes[] = {3, 0, 5};
    const at::Tensor x = distribute(value, mesh, "{fsdp: S(0|3,0,5)}");
    EXPECT_TRUE(at::equal(to_local(x), value.narrow(0, begins[rank], sizes[rank])));
    EXPECT_TRUE(at::equal(full_tensor(x), value));
    const at::Tensor again = from_local(to_local(x), mesh, {RaggedShard({0}, {3, 0, 5})});
    EXPECT_EQ(again.sizes(), value.sizes()) << "its sizes say how large the whole is";
    EXPECT_TRUE(at::equal(full_tensor(again), value));
  });
  EXPECT_SAYS(failure_on(3, [&](int64_t) { distribute(value, mesh, "{fsdp: S(0|3,0,4)}"); }),
              "accepted: 3 sizes that add up to 8");
}

TEST(Ragged, MovesFromAnyLayoutToAnyOther) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const char* text : {"x=3", "x=4", "a=2,b=2", "a=3,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      Ragged draw(mesh, seed);
      for (int i = 0; i < 60; ++i) {
        const Sizes sizes = {draw.random().number(0, 12), draw.random().number(1, 7)};
        const at::Tensor value = integers(sizes);
        const Placements from = draw.placements(sizes, true), to = draw.placements(sizes, true);
        const at::Tensor found = redistribute(spread(value, mesh, from), to);
        const Spec spec = Spec::contiguous(mesh, to, sizes, at::kDouble);
        EXPECT_EQ(spec_of(found), spec);
        const bool is_exact = !spec->has_partial;
        const at::Tensor held = is_exact ? to_local(found) : full_tensor(found),
                         expected = is_exact ? part_at(value, spec, *mesh.coord_of(rank)) : value;
        EXPECT_LE(error_of(held, expected), 1e-14)
            << layout::str(mesh, from) << " -> " << layout::str(mesh, to) << " of " << value.sizes();
      }
    });
  }
}

TEST(Ragged, MovesToOtherMeshes) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Mesh square = Mesh::parse("a=2,b=2"), line = Mesh::parse("x=4");
  run_on(square, [&](int64_t) {
    Ragged from(square, seed), to(line, seed + 1);
    for (int i = 0; i < 40; ++i) {
      const Sizes sizes = {from.random().number(0, 12), from.random().number(1, 7)};
      const at::Tensor value = integers(sizes);
      const at::Tensor x = spread(value, square, from.placements(sizes, true));
      const at::Tensor found = redistribute(x, line, to.placements(sizes));
      EXPECT_TRUE(at::equal(full_tensor(found), value)) << spec_of(x).str() << " -> " << spec_of(found).str();
    }
  });
}

const std::vector<std::function<at::Tensor(const at::Tensor&)>>& uses() {
  static const std::vector<std::function<at::Tensor(const at::Tensor&)>> all = {
      [](const at::Tensor& x) { return x * 2 + x.exp(); },
      [](const at::Tensor& x) { return x.t().contiguous(); },
      [](const at::Tensor& x) { return x.view({-1}).mul(3); },
      [](const at::Tensor& x) { return x.view({4, 3, 6}).relu(); },
      [](const at::Tensor& x) { return x.view({12, 2, 3}).sum({1}); },
      [](const at::Tensor& x) { return x.unsqueeze(1).expand({12, 2, 6}); },
      [](const at::Tensor& x) { return x.sum({0}); },
      [](const at::Tensor& x) { return x.sum({1}); },
      [](const at::Tensor& x) { return x.mean(); },
      [](const at::Tensor& x) { return x.amax({0}); },
      [](const at::Tensor& x) { return x.norm(); },
      [](const at::Tensor& x) { return x.slice(0, 2, 9); },
      [](const at::Tensor& x) { return x.slice(1, 1, 6, 2); },
      [](const at::Tensor& x) { return x.select(0, 5); },
      [](const at::Tensor& x) { return x.split(4, 0)[1]; },
      [](const at::Tensor& x) { return at::cat({x, x.neg()}, 0); },
      [](const at::Tensor& x) { return at::cat({x, x.neg()}, 1); },
      [](const at::Tensor& x) { return at::softmax(x, 0); },
      [](const at::Tensor& x) { return at::softmax(x, 1); },
      [](const at::Tensor& x) { return at::layer_norm(x, {6}).exp(); },
      [](const at::Tensor& x) { return x.cumsum(0); },
      [](const at::Tensor& x) { return x.tril(1); },
      [](const at::Tensor& x) { return x.roll(1, 0); },
      [](const at::Tensor& x) { return x.index_select(0, at::tensor({3, 1, 11})); },
      [](const at::Tensor& x) { return at::embedding(x, at::tensor({3, 1, 11})); },
      [](const at::Tensor& x) { return x.mm(x.t()); },
      [](const at::Tensor& x) { return x.t().mm(x); },
      [](const at::Tensor& x) { return at::linear(waves({5, 6}), x); },
  };
  return all;
}

TEST(Ragged, UsesAndTheirGradientsAreRight) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const at::Tensor value = waves({12, 6});
  for (const char* text : {"x=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      Ragged draw(mesh, seed);
      for (size_t i = 0; i < uses().size(); ++i) {
        for (int turn = 0; turn < 4; ++turn) {
          const Placements lies = turn == 0 ? draw.rows({12, 6}) : draw.placements({12, 6}, turn == 1);
          const at::Tensor plain = value.clone().requires_grad_(), x = spread(value, mesh, lies).requires_grad_();
          const at::Tensor expected = uses()[i](plain), found = uses()[i](x);
          EXPECT_LE(error_of(full_tensor(found.detach()), expected.detach()), 1e-12) << i << " of " << layout_of(x);
          expected.square().sum().backward();
          found.square().sum().backward();
          EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-12) << "gradient of " << i << layout_of(x);
        }
      }
    });
  }
}

TEST(Ragged, WritesReachTheRowsOfEveryRank) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  run_on(mesh, [&](int64_t) {
    at::Tensor expected = waves({8, 4});
    const at::Tensor x = distribute(expected, mesh, "{fsdp: S(0|0,3,5)}");
    for (const at::Tensor& t : {expected, x}) {
      t.mul_(2).add_(waves({4}));
      t.t().sub_(1);
      t.slice(0, 2, 5).fill_(3);
      t.select(0, 7).zero_();
      t.view({-1}).clamp_(-1, 2);
    }
    EXPECT_LE(error_of(full_tensor(x), expected), 1e-14);
    EXPECT_EQ(layout_of(x), "{fsdp: S(0|0,3,5)}");
  });
}

// Three steps of a small network whose parameters' rows are dealt out raggedly; the norms that clipping saw.
std::vector<double> train(Tensors& parameters, const at::Tensor& x, AdamW& update) {
  return clipped_steps(parameters, update, [&] {
    const at::Tensor hidden = at::tanh(at::linear(x, parameters[0], parameters[1]));
    return at::linear(hidden, parameters[2]).square().mean();
  });
}

TEST(Ragged, AdamWAndClippingAreThoseOfOneDevice) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Tensors start = {waves({7, 5}), waves({7}, 0.77), waves({3, 7}, 0.53)};
  const at::Tensor input = waves({6, 5}, 0.29);
  for (const bool is_fused : {false, true}) {
    Tensors plain;
    for (const at::Tensor& value : start) {
      plain.push_back(value.clone().requires_grad_());
    }
    AdamW one(is_fused);
    const auto norms = train(plain, input, one);
    for (const char* text : {"fsdp=3", "fsdp=3,tp=2"}) {
      const Mesh mesh = Mesh::parse(text);
      run_on(mesh, [&](int64_t) {
        Ragged draw(mesh, seed);
        for (int turn = 0; turn < 4; ++turn) {
          Tensors parameters;
          for (const at::Tensor& value : start) {
            parameters.push_back(distribute(value, mesh, draw.rows(value.sizes().vec())).requires_grad_());
          }
          const Tensors before = parameters;
          std::vector<std::string> layouts;
          for (const at::Tensor& parameter : parameters) {
            layouts.push_back(layout_of(parameter));
          }
          AdamW many(is_fused);
          const auto found = train(parameters, distribute(input, mesh, Placements(mesh.ndim())), many);
          for (size_t i = 0; i < norms.size(); ++i) {
            EXPECT_NEAR(found[i], norms[i], 1e-12 * norms[i]);
          }
          for (size_t i = 0; i < plain.size(); ++i) {
            EXPECT_LE(error_of(full_tensor(parameters[i].detach()), plain[i].detach()), 1e-11) << layouts[i];
            EXPECT_EQ(layout_of(parameters[i]), layouts[i]) << "a parameter stays where it is";
            EXPECT_EQ(layout_of(many.first[i]), layouts[i]) << "and its moments lie beside it";
          }
        }
      });
    }
  }
}

const std::vector<std::pair<const char*, std::function<at::Tensor(at::Tensor)>>>& draws() {
  namespace init = torch::nn::init;
  static const std::vector<std::pair<const char*, std::function<at::Tensor(at::Tensor)>>> all = {
      {"uniform_", [](at::Tensor x) { return x.uniform_(-1, 2); }},
      {"normal_", [](at::Tensor x) { return x.normal_(1, 2); }},
      {"bernoulli_", [](at::Tensor x) { return x.bernoulli_(0.3); }},
      {"random_", [](at::Tensor x) { return x.random_(100); }},
      {"exponential_", [](at::Tensor x) { return x.exponential_(2); }},
      {"dropout", [](at::Tensor x) { return at::dropout(x.fill_(3), 0.4, true); }},
      {"randn_like", [](at::Tensor x) { return at::randn_like(x); }},
      {"kaiming_uniform_", [](at::Tensor x) { return init::kaiming_uniform_(x); }},
      {"turned", [](at::Tensor x) { return x.t().normal_(), x; }},
      {"flat", [](at::Tensor x) { return x.view({-1}).uniform_(), x; }},
  };
  return all;
}

// What each draws, one after the other.
Tensors drawn(const std::function<at::Tensor()>& zeros, GeneratorKind kind) {
  at::NoGradGuard no_grad;
  dtensor::set_generator(kind);
  dtensor::manual_seed(11);
  Tensors values;
  for (const auto& [name, draw] : draws()) {
    values.push_back(full_tensor(draw(zeros())));
  }
  return values;
}

TEST(Ragged, RandomNumbersAreThoseOfOneDevice) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const GeneratorKind kind : {GeneratorKind::kCounter, GeneratorKind::kStock}) {
    for (const Sizes& sizes : std::vector<Sizes>{{11, 5}, {3, 40}}) {
      Tensors expected;
      const Mesh one = Mesh::parse("a=1");
      run_on(one, [&](int64_t) {
        expected = drawn([&] { return distribute(at::zeros(sizes, at::kFloat), one, "{}"); }, kind);
      });
      for (const char* text : {"fsdp=3", "a=2,b=2"}) {
        const Mesh mesh = Mesh::parse(text);
        run_on(mesh, [&](int64_t) {
          Ragged draw(mesh, seed);
          for (int turn = 0; turn < 5; ++turn) {
            const Placements lies = turn == 0 ? draw.rows(sizes) : draw.placements(sizes);
            const Tensors found = drawn([&] { return distribute(at::zeros(sizes, at::kFloat), mesh, lies); }, kind);
            for (size_t i = 0; i < found.size(); ++i) {
              EXPECT_TRUE(at::equal(found[i], expected[i])) << draws()[i].first << " " << layout::str(mesh, lies);
            }
          }
        });
      }
    }
  }
}

// Rows are leaves of the norm; a sum over what is cut inside of its leaves is refused as every such cut is.
TEST(Ragged, ExactSumsHaveTheBitsOfOneRank) {
  const at::Tensor value = waves({24, 16}, 0.61).to(at::kFloat);
  const auto results = [&](const Mesh& mesh, const Placements& lies) {
    dtensor::set_numerics(Numerics::kExact);
    const at::Tensor x = distribute(value, mesh, lies);
    return Tensors{full_tensor(x.sum({0})), full_tensor(x.sum({1})), full_tensor(x.mul(2).norm())};
  };
  Tensors expected;
  run_on(Mesh(), [&](int64_t) { expected = results(Mesh(), {}); });
  const Mesh mesh = Mesh::parse("fsdp=3");
  run_on(mesh, [&](int64_t) {
    for (const Sizes& rows : std::vector<Sizes>{{9, 0, 15}, {0, 24, 0}, {3, 6, 15}}) {
      const Tensors found = results(mesh, {RaggedShard({0}, rows)});
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << i << " of rows " << c10::IntArrayRef(rows);
      }
    }
  });
  EXPECT_SAYS(failure_on(3, [&](int64_t) { results(mesh, {RaggedShard({0}, {10, 0, 14})}); }),
              "the cut at 10 is inside leaf 3");
}

// What a rank sends, by the ledger: the closed forms of the averages.
TEST(Ragged, BytesAreThoseOfTheParts) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  const at::Tensor value = integers({9, 4});
  const double whole = 9 * 4 * 8;
  run_on(mesh, [&](int64_t) {
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    const auto bytes = [&](const char* from, const char* to) {
      const at::Tensor x = spread(value, mesh, layout::parse_placements(mesh, from));
      ledger.clear();
      redistribute(x, to);
      return static_cast<double>(ledger.total_bytes());
    };
    EXPECT_EQ(bytes("{fsdp: S(0|3,0,6)}", "{}"), whole * 2 / 3);
    EXPECT_EQ(bytes("{fsdp: P}", "{fsdp: S(0|3,0,6)}"), whole * 2 / 3);
    EXPECT_EQ(bytes("{}", "{fsdp: S(0|3,0,6)}"), 0);
    EXPECT_EQ(bytes("{fsdp: S(0|9,0,0)}", "{fsdp: S(0|0,0,9)}"), whole / 3);
    EXPECT_EQ(bytes("{fsdp: S(0|0,9,0)}", "{fsdp: On(1)}"), 0);
    EXPECT_EQ(bytes("{fsdp: S(0|3,3,3)}", "{fsdp: S(0)}"), 0);
  });
}

}  // namespace
}  // namespace tessera::ranks::ragged_test
