// Cuts of leading dims taken together: moved, computed with, written, trained, clipped and drawn, against one device.
#include <torch/torch.h>

#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tests/ranks/adamw_by_operators.h"
#include "tests/ranks/support.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::ranks::spanning_test {
namespace {

using dtensor::GeneratorKind;
using dtensor::Numerics;
using layout::RaggedShard;
using layout::RandomLayouts;
using layout::Replicate;
using layout::Shard;
using Tensors = std::vector<at::Tensor>;

uint32_t new_seed() { return std::random_device{}(); }

std::string layout_of(const at::Tensor& x) { return spec_of(x).layout_str(); }

// Where an axis is free, a cut of the dim behind those that are taken together, in blocks or not.
Placements with_cut_behind(RandomLayouts& random, Placements placements, const Sizes& sizes, int64_t last) {
  for (layout::Placement& placement : placements) {
    if (placement.is_replicate() && last + 1 < static_cast<int64_t>(sizes.size())) {
      const bool is_even = sizes[last + 1] % 2 == 0 && random.number(0, 1) == 0;
      placement = is_even ? layout::InterleavedShard(last + 1, 2) : Shard(last + 1);
      return placements;
    }
  }
  return placements;
}

// Half of them such cuts, some beside others.
Placements any_cut(RandomLayouts& random, const Mesh& mesh, const Sizes& sizes, bool with_others) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  if (random.number(0, 1) == 0) {
    return random.with_ragged_cuts(mesh, random.placements(mesh, ndim, with_others), sizes);
  }
  const int64_t last = random.number(1, ndim - 1);
  Placements placements = random.spanning_cuts(mesh, sizes, last);
  for (layout::Placement& placement : placements) {
    if (placement.is_replicate() && with_others && random.number(0, 2) == 0) {
      placement = layout::Partial();
    }
  }
  return random.number(0, 1) == 0 ? placements : with_cut_behind(random, std::move(placements), sizes, last);
}

TEST(Spanning, PartsAreARunOfTheDimsTogether) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  const at::Tensor value = integers({2, 3, 4});
  run_on(mesh, [&](int64_t rank) {
    const int64_t begins[] = {0, 1, 1}, sizes[] = {1, 0, 5};
    const at::Tensor x = distribute(value, mesh, "{fsdp: S(0-1|1,0,5)}");
    EXPECT_EQ(x.sizes(), value.sizes());
    EXPECT_TRUE(at::equal(to_local(x), value.view({1, 6, 4}).narrow(1, begins[rank], sizes[rank])));
    EXPECT_TRUE(at::equal(full_tensor(x), value));
    const at::Tensor again = from_local(to_local(x), mesh, {RaggedShard({0, 1}, {1, 0, 5})}, Sizes{2, 3, 4});
    EXPECT_TRUE(at::equal(full_tensor(again), value));
    const at::Tensor rows = distribute(value, mesh, "{fsdp: S(0|1,1,0)}");
    const at::Tensor same = redistribute(rows, {RaggedShard({0, 1}, {3, 3, 0})});  // no element moves
    EXPECT_EQ(to_local(same).sizes().vec(), (Sizes{1, rank < 2 ? 3 : 0, 4}));
    EXPECT_TRUE(at::equal(full_tensor(same), value));
    const at::Tensor gathered = dtensor::gather_to(1, x);
    EXPECT_TRUE(rank != 1 || at::equal(gathered, value));
  });
  EXPECT_SAYS(failure_on(3, [&](int64_t) { distribute(value, mesh, "{fsdp: S(0-1|1,0,4)}"); }),
              "accepted: 3 sizes that add up to 6");
  EXPECT_SAYS(failure_on(3, [&](int64_t) { from_local(at::zeros({1, 2, 4}), mesh, {RaggedShard({0, 1}, {2, 2, 2})}); }),
              "give the global sizes");
}

TEST(Spanning, MovesFromAnyLayoutToAnyOther) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const char* text : {"x=3", "x=4", "a=2,b=2", "a=3,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      RandomLayouts random(seed);
      for (int i = 0; i < 80; ++i) {
        const Sizes sizes = {random.number(0, 4), random.number(1, 5), random.number(1, 3), random.number(1, 4)};
        const at::Tensor value = integers(sizes);
        const Placements from = any_cut(random, mesh, sizes, true), to = any_cut(random, mesh, sizes, true);
        const at::Tensor found = redistribute(spread(value, mesh, from), to);
        const Spec spec = Spec::contiguous(mesh, to, sizes, at::kDouble);
        EXPECT_EQ(spec_of(found), spec);
        EXPECT_EQ(to_local(found).sizes(), c10::IntArrayRef(spec.local_sizes(*mesh.coord_of(rank))));
        EXPECT_LE(error_of(full_tensor(found), value), 1e-14)
            << layout::str(mesh, from) << " -> " << layout::str(mesh, to) << " of " << value.sizes();
      }
    });
  }
}

TEST(Spanning, MovesToOtherMeshes) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Mesh square = Mesh::parse("a=2,b=2"), line = Mesh::parse("x=4");
  run_on(square, [&](int64_t) {
    RandomLayouts random(seed);
    for (int i = 0; i < 40; ++i) {
      const Sizes sizes = {random.number(1, 4), random.number(1, 5), random.number(1, 3)};
      const at::Tensor value = integers(sizes);
      const at::Tensor x = spread(value, square, any_cut(random, square, sizes, true));
      const at::Tensor found = redistribute(x, line, any_cut(random, line, sizes, false));
      EXPECT_TRUE(at::equal(full_tensor(found), value)) << spec_of(x).str() << " -> " << spec_of(found).str();
    }
  });
}

struct Use {
  std::function<at::Tensor(const at::Tensor&)> of;
  bool keeps_cut = false;  // computed where the tensor lies, of the same dims
};

// Of [3, 4, 6].
const std::vector<Use>& uses() {
  static const std::vector<Use> all = {
      {[](const at::Tensor& x) { return x * 2 + x.exp(); }, true},
      {[](const at::Tensor& x) { return x.mul(waves({6})); }, true},
      {[](const at::Tensor& x) { return x.mul(waves({4, 6})); }},
      {[](const at::Tensor& x) { return x.mul(waves({3, 1, 1})); }},
      {[](const at::Tensor& x) { return x + waves({3, 4, 6}, 0.3); }, true},
      {[](const at::Tensor& x) { return x.unsqueeze(3).expand({3, 4, 6, 2}).contiguous(); }, true},
      {[](const at::Tensor& x) { return at::softmax(x, 2); }, true},
      {[](const at::Tensor& x) { return at::layer_norm(x, {6}).exp(); }, true},
      {[](const at::Tensor& x) { return x.sum({2}); }, true},
      {[](const at::Tensor& x) { return x.sum({0, 1}); }},
      {[](const at::Tensor& x) { return x.sum({1}); }},
      {[](const at::Tensor& x) { return x.sum({0}); }},
      {[](const at::Tensor& x) { return x.mean(); }},
      {[](const at::Tensor& x) { return x.norm(); }},
      {[](const at::Tensor& x) { return x.amax({0, 1}); }},
      {[](const at::Tensor& x) { return x.transpose(1, 2).contiguous(); }},
      {[](const at::Tensor& x) { return x.select(0, 1).mm(waves({6, 2})); }},
      {[](const at::Tensor& x) { return x.unbind(0)[2].t().relu(); }},
      {[](const at::Tensor& x) { return x.split(2, 1)[1].exp(); }},
      {[](const at::Tensor& x) { return x.slice(2, 1, 5).exp(); }},
      {[](const at::Tensor& x) { return x.view({12, 6}).relu(); }},
      {[](const at::Tensor& x) { return x.view({-1}).mul(3); }},
      {[](const at::Tensor& x) { return x.flatten(1).exp(); }},
      {[](const at::Tensor& x) { return x.cumsum(1); }},
      {[](const at::Tensor& x) { return x.tril(1); }},
      {[](const at::Tensor& x) { return x.bmm(x.transpose(1, 2)); }},
      {[](const at::Tensor& x) { return at::matmul(waves({2, 4}), x); }},
      {[](const at::Tensor& x) { return x.index_select(0, at::tensor({2, 0})); }},
      {[](const at::Tensor& x) { return at::cat({x, x.neg()}, 0); }},
      {[](const at::Tensor& x) { return at::stack({x, x.neg()}, 0); }},
      {[](const at::Tensor& x) { return at::einsum("eio,bi->ebo", {x, waves({5, 4})}); }},
  };
  return all;
}

TEST(Spanning, UsesAndTheirGradientsAreRight) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const at::Tensor value = waves({3, 4, 6});
  for (const char* text : {"x=4", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      RandomLayouts random(seed);
      for (size_t i = 0; i < uses().size(); ++i) {
        for (int turn = 0; turn < 3; ++turn) {
          Placements lies = random.spanning_cuts(mesh, {3, 4, 6}, 1);
          const bool is_cut_behind = turn == 2;
          lies = is_cut_behind ? with_cut_behind(random, std::move(lies), {3, 4, 6}, 1) : lies;
          const at::Tensor plain = value.clone().requires_grad_(), x = distribute(value, mesh, lies).requires_grad_();
          const at::Tensor expected = uses()[i].of(plain), found = uses()[i].of(x);
          EXPECT_LE(error_of(full_tensor(found.detach()), expected.detach()), 1e-12) << i << " of " << layout_of(x);
          EXPECT_TRUE(!uses()[i].keeps_cut || is_cut_behind || layout_of(found) == layout_of(x))
              << i << ": " << layout_of(found);
          expected.square().sum().backward();
          found.square().sum().backward();
          EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-12) << "gradient of " << i << layout_of(x);
        }
      }
    });
  }
}

TEST(Spanning, WritesReachEveryRank) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  run_on(mesh, [&](int64_t) {
    at::Tensor expected = waves({2, 4, 3});
    const at::Tensor x = distribute(expected, mesh, "{fsdp: S(0-1|0,3,5)}");
    for (const at::Tensor& t : {expected, x}) {
      t.mul_(2).add_(waves({3}));
      t.add_(waves({2, 4, 3}, 0.4));
      t.copy_(t.exp());
      t.transpose(1, 2).sub_(1);
      t.slice(1, 2, 4).fill_(3);
      t.select(0, 1).zero_();
      t.view({-1}).clamp_(-1, 2);
      t.masked_fill_(waves({2, 4, 3}, 0.9) > 0, 7);
    }
    EXPECT_LE(error_of(full_tensor(x), expected), 1e-14);
    EXPECT_EQ(layout_of(x), "{fsdp: S(0-1|0,3,5)}");
    const at::Tensor eye = distribute(at::zeros({3, 5}, at::kDouble), mesh, "{fsdp: S(0-1|4,4,7)}");
    at::Tensor out = eye;
    at::eye_out(out, 3, 5);
    EXPECT_TRUE(at::equal(full_tensor(eye), at::eye(3, 5, at::kDouble)));
  });
}

// What cannot run where the tensor lies, and would have to leave its result there.
TEST(Spanning, AWriteThatWouldMoveItIsRefused) {
  const Mesh mesh = Mesh::parse("fsdp=2");
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           const at::Tensor x = distribute(waves({2, 4, 3}), mesh, "{fsdp: S(0-1|3,5)}");
                           x.cumsum_(1);
                         }),
              "takes dims together");
}

// Three steps of a network of experts whose matrices' rows are dealt out; the norms that clipping saw.
std::vector<double> train(Tensors& parameters, const at::Tensor& x, AdamW& update) {
  return clipped_steps(parameters, update, [&] {
    at::Tensor sum;
    for (int64_t expert = 0; expert < parameters[0].size(0); ++expert) {
      const at::Tensor hidden = at::tanh(x.mm(parameters[0].select(0, expert)));
      const at::Tensor out = hidden.mm(parameters[1].select(0, expert)) * parameters[2];
      sum = expert == 0 ? out : sum + out;
    }
    return sum.square().mean();
  });
}

// In `exact` they have the bits of one rank.
TEST(Spanning, AdamWAndClippingAreThoseOfOneDevice) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Tensors start = {waves({3, 5, 4}), waves({3, 4, 2}, 0.77), waves({2}, 0.53)};
  const at::Tensor input = waves({6, 5}, 0.29);
  for (const Numerics numerics : {Numerics::kFast, Numerics::kExact}) {
    for (const bool is_fused : {false, true}) {
      const auto run = [&](const Mesh& mesh, RandomLayouts* random, std::vector<double>& norms) {
        dtensor::set_numerics(numerics);
        const auto dtype = numerics == Numerics::kFast ? at::kDouble : at::kFloat;
        Tensors parameters;
        std::vector<std::string> layouts;
        for (const at::Tensor& value : start) {
          const bool spans = random != nullptr && value.dim() == 3;
          Placements lies = spans ? random->spanning_cuts(mesh, value.sizes().vec(), 1) : Placements(mesh.ndim());
          if (spans && numerics == Numerics::kFast) {  // in `exact` nothing in blocks is written in place
            lies = with_cut_behind(*random, std::move(lies), value.sizes().vec(), 1);
          }
          parameters.push_back(distribute(value.to(dtype), mesh, lies).requires_grad_());
          layouts.push_back(layout_of(parameters.back()));
        }
        AdamW update(is_fused);
        norms = train(parameters, distribute(input.to(dtype), mesh, Placements(mesh.ndim())), update);
        Tensors found;
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_EQ(layout_of(parameters[i]), layouts[i]) << "a parameter stays where it is";
          EXPECT_EQ(layout_of(update.first[i]), layouts[i]) << "and its moments lie beside it";
          found.push_back(full_tensor(parameters[i].detach()));
        }
        return found;
      };
      Tensors expected;
      std::vector<double> norms;
      run_on(Mesh(), [&](int64_t) { expected = run(Mesh(), nullptr, norms); });
      for (const char* text : {"fsdp=3", "fsdp=3,tp=2"}) {
        const Mesh mesh = Mesh::parse(text);
        run_on(mesh, [&](int64_t) {
          RandomLayouts random(seed);
          for (int turn = 0; turn < 3; ++turn) {
            std::vector<double> other;
            const Tensors found = run(mesh, &random, other);
            for (size_t i = 0; i < found.size(); ++i) {
              EXPECT_LE(error_of(found[i], expected[i]), 1e-11);
              EXPECT_TRUE(numerics == Numerics::kFast || at::equal(found[i], expected[i])) << i;
              EXPECT_NEAR(other[i], norms[i], numerics == Numerics::kFast ? 1e-12 * norms[i] : 0);
            }
          }
        });
      }
    }
  }
}

TEST(Spanning, RandomNumbersAreThoseOfOneDevice) {
  namespace init = torch::nn::init;
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Sizes sizes = {3, 5, 7};
  const auto drawn = [&](const Mesh& mesh, const Placements& lies, GeneratorKind kind) {
    at::NoGradGuard no_grad;
    dtensor::set_generator(kind);
    dtensor::manual_seed(11);
    const auto zeros = [&] { return distribute(at::zeros(sizes, at::kFloat), mesh, lies); };
    Tensors values = {zeros().uniform_(-1, 2), zeros().normal_(1, 2),
                      zeros().random_(100),    at::dropout(zeros().fill_(3), 0.4, true),
                      at::randn_like(zeros()), init::kaiming_uniform_(zeros())};
    at::Tensor turned = zeros();
    turned.transpose(1, 2).normal_();
    values.push_back(turned);
    for (at::Tensor& value : values) {
      value = full_tensor(value);
    }
    return values;
  };
  for (const GeneratorKind kind : {GeneratorKind::kCounter, GeneratorKind::kStock}) {
    Tensors expected;
    const Mesh one = Mesh::parse("a=1");
    run_on(one, [&](int64_t) { expected = drawn(one, {Replicate()}, kind); });
    for (const char* text : {"fsdp=3", "a=2,b=2"}) {
      const Mesh mesh = Mesh::parse(text);
      run_on(mesh, [&](int64_t) {
        RandomLayouts random(seed);
        for (int turn = 0; turn < 4; ++turn) {
          const Placements lies = random.spanning_cuts(mesh, sizes, random.number(1, 2));
          const Tensors found = drawn(mesh, lies, kind);
          for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(at::equal(found[i], expected[i])) << i << " " << layout::str(mesh, lies);
          }
        }
      });
    }
  }
}

// Slices of the whole that tile it, as files have them.
TEST(Spanning, ChunksAreSlicesOfTheWhole) {
  const uint32_t seed = new_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Mesh mesh = Mesh::parse("fsdp=3");
  run_on(mesh, [&](int64_t) {
    RandomLayouts random(seed);
    for (int turn = 0; turn < 20; ++turn) {
      const Sizes sizes = {random.number(1, 4), random.number(1, 4), random.number(1, 4), 2};
      const at::Tensor value = integers(sizes);
      const at::Tensor x = distribute(value, mesh, random.spanning_cuts(mesh, sizes, random.number(1, 3)));
      int64_t elements = 0;
      for (const dtensor::Chunk& chunk : dtensor::chunks_of(x)) {
        at::Tensor slice = value;
        for (size_t d = 0; d < sizes.size(); ++d) {
          const auto dim = static_cast<int64_t>(d);
          slice = slice.narrow(dim, chunk.offsets[d], chunk.part.size(dim));
        }
        EXPECT_TRUE(at::equal(slice, chunk.part)) << layout_of(x);
        elements += slice.numel();
      }
      EXPECT_EQ(elements, to_local(x).numel()) << layout_of(x);
    }
  });
}

}  // namespace
}  // namespace tessera::ranks::spanning_test
