// scaled_dot_product_attention in `exact` numerics: by blocks it has the bits of its parts, and those of one rank on
// every layout.

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/dtensor/ops/attention.h"
#include "tessera/dtensor/ops/attention_op.h"
#include "tessera/dtensor/ops/attention_parts.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::attention_exact_test {
namespace {

using dtensor::Numerics;
using layout::Label;
using sums::Lattice;
using layout::Replicate;
using layout::Shard;

constexpr int64_t kSamples = 4, kWidth = 6, kValueWidth = 3;

enum class Mask : uint8_t { kNone, kCausal, kAllowed, kAllowedBySample, kAdded, kAddedByHead };

struct Case {
  const char* name;
  int64_t heads = 4, key_heads = 4, queries = 16, keys = 16;
  Mask mask = Mask::kNone;
  std::optional<double> scale = std::nullopt;
};

const Case kCases[] = {
    {"plain"},
    {"causal", 4, 4, 16, 16, Mask::kCausal},
    {"more keys than queries", 4, 4, 5, 19},
    {"groups", 8, 4, 13, 13, Mask::kCausal},
    {"large groups", 20, 2, 8, 8},
    {"one key head", 6, 1, 8, 8, Mask::kCausal},
    {"an empty row", 4, 4, 16, 16, Mask::kAllowed},
    {"a mask for each sample", 4, 2, 7, 16, Mask::kAllowedBySample},
    {"added", 4, 4, 16, 16, Mask::kAdded},
    {"added for each head", 4, 2, 16, 16, Mask::kAddedByHead, -0.3},
    {"longer than a piece", 2, 2, 300, 300, Mask::kCausal},
};

std::optional<at::Tensor> mask_of(const Case& c, at::ScalarType dtype) {
  const auto seen = [](c10::IntArrayRef sizes) { return waves(sizes, 0.71) > -0.5; };
  switch (c.mask) {
    case Mask::kAllowed: {
      at::Tensor mask = seen({c.queries, c.keys});
      mask[1].fill_(false);
      return mask;
    }
    case Mask::kAllowedBySample: return seen({kSamples, 1, 1, c.keys});
    case Mask::kAdded: return waves({c.queries, c.keys}, 0.7).to(dtype);
    case Mask::kAddedByHead: return waves({c.heads, 1, c.keys}, 0.17).to(dtype);
    default: return std::nullopt;
  }
}

struct Inputs {
  at::Tensor query, key, value, grad;
  std::optional<at::Tensor> mask;
};

Inputs inputs_of(const Case& c, at::ScalarType dtype) {
  const auto make = [&](c10::IntArrayRef sizes, double step) { return waves(sizes, step).mul(2).to(dtype); };
  return {make({kSamples, c.heads, c.queries, kWidth}, 0.37), make({kSamples, c.key_heads, c.keys, kWidth}, 0.61),
          make({kSamples, c.key_heads, c.keys, kValueWidth}, 0.23),
          make({kSamples, c.heads, c.queries, kValueWidth}, 0.43), mask_of(c, dtype)};
}

// How the tensors lie, and whether they say which dims are samples and positions.
struct Placed {
  Mesh mesh;
  Placements query, key;  // key: of the value too
  bool has_labels = false;

  at::Tensor put(const at::Tensor& x, const Placements& placements) const {
    const at::Tensor placed = distribute(x, mesh, placements);
    if (!has_labels) {
      return placed;
    }
    layout::Labels labels(4);
    labels[0] = {{.label = Label::kBatch, .extent = x.size(0), .total = x.size(0)}};
    labels[2] = {{.label = Label::kSequence, .extent = x.size(2), .total = x.size(2)}};
    return dtensor::with_labels(placed, labels, dtensor::Origin::make({{0, 0}}));
  }
  std::string str() const {
    return c10::str(layout::str(mesh, query), " ", layout::str(mesh, key), has_labels ? " with labels" : "");
  }
};

using Results = std::vector<at::Tensor>;             // value and gradients, whole
enum class Way : uint8_t { kParts, kAny, kBlocks };  // kBlocks: it must

Results run(const Case& c, const Inputs& inputs, const Placed& placed, Way way) {
  const at::Tensor query = placed.put(inputs.query, placed.query).detach().set_requires_grad(true);
  const at::Tensor key = placed.put(inputs.key, placed.key).detach().set_requires_grad(true);
  const at::Tensor value = placed.put(inputs.value, placed.key).detach().set_requires_grad(true);
  const bool is_causal = c.mask == Mask::kCausal;
  const at::Tensor out =
      way == Way::kParts ? dtensor::attention_by_parts(query, key, value, inputs.mask,
                                                       {.is_causal = is_causal, .scale = c.scale, .with_groups = true})
                         : at::scaled_dot_product_attention(query, key, value, inputs.mask, 0.0, is_causal, c.scale,
                                                            /*enable_gqa=*/true);
  if (way == Way::kBlocks) {
    EXPECT_EQ(out.grad_fn()->name(), "AttentionBackward");
  }
  EXPECT_EQ(spec_of(out)->labels, spec_of(query)->labels);
  out.backward(placed.put(inputs.grad, placed.query));
  Results results;
  for (const at::Tensor& x : {out.detach(), query.grad(), key.grad(), value.grad()}) {
    results.push_back(full_tensor(x).contiguous());
  }
  return results;
}

at::Tensor bits(const at::Tensor& x) {
  return x.masked_fill(x.isnan(), 0.5).view(x.element_size() == 8 ? at::kLong : at::kInt);
}

void expect_same(const Results& found, const Results& expected, const std::string& what) {
  const char* const names[] = {"value", "gradient of the query", "gradient of the key", "gradient of the value"};
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t differ = bits(found[i]).ne(bits(expected[i])).sum().item<int64_t>();
    EXPECT_EQ(differ, 0) << what << ": " << names[i] << " of " << expected[i].sizes();
    EXPECT_FALSE(expected[i].isnan().any().item<bool>()) << what;
  }
}

// Runs `body` on every rank in `exact`.
void run_exact(const Mesh& mesh, const Lattice& lattice, const std::function<void(int64_t)>& body) {
  run_on(mesh, [&](int64_t rank) {
    dtensor::set_numerics(Numerics::kExact, lattice);
    body(rank);
  });
}

Results on_one(const Case& c, const Inputs& inputs, const Lattice& lattice, bool has_labels, Way way) {
  Results results;
  run_exact(Mesh(), lattice, [&](int64_t) { results = run(c, inputs, {Mesh(), {}, {}, has_labels}, way); });
  return results;
}

constexpr Lattice kLattices[] = {{8, 1, 8}, {8, 8, 8}};

template <typename Body>
void for_each_case(const Body& body) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Lattice& lattice : kLattices) {
      for (const bool has_labels : {false, true}) {
        for (const Case& c : kCases) {
          SCOPED_TRACE(c10::str(c.name, ", ", dtype, ", ", lattice.str(), has_labels ? ", labels" : ""));
          const Inputs inputs = inputs_of(c, dtype);
          body(c, inputs, lattice, has_labels, on_one(c, inputs, lattice, has_labels, Way::kParts));
        }
      }
    }
  }
}

TEST(ExactAttention, ByBlocksHasTheBitsOfItsParts) {
  for_each_case(
      [](const Case& c, const Inputs& inputs, const Lattice& lattice, bool has_labels, const Results& expected) {
        expect_same(on_one(c, inputs, lattice, has_labels, Way::kBlocks), expected, "one rank");
      });
}

TEST(ExactAttention, SamplesAndHeadsMayBeCut) {
  for_each_case(
      [](const Case& c, const Inputs& inputs, const Lattice& lattice, bool has_labels, const Results& expected) {
        if (c.queries > 256 && !is_full()) {
          return;
        }
        for (const char* text : {"dp=2", "dp=3", "tp=2", "tp=4", "dp=2,tp=2"}) {
          const Mesh mesh = Mesh::parse(text);
          const auto tp = mesh.find_axis("tp");
          const bool fits = !tp || c.key_heads % mesh.axis(*tp).size == 0;
          Placed placed{mesh, Placements(mesh.ndim(), Shard(0)), {}, has_labels};
          if (tp) {
            placed.query[*tp] = Shard(1);
          }
          placed.key = placed.query;
          if (tp && !fits) {
            placed.key[*tp] = Replicate();  // fewer key heads than ranks: each has all of them
          }
          run_exact(mesh, lattice, [&](int64_t) {
            expect_same(run(c, inputs, placed, fits ? Way::kBlocks : Way::kAny), expected, placed.str());
          });
        }
      });
}

// Other layouts are brought to one that fits, or run in parts: where positions are cut, each rank keeps its queries.
TEST(ExactAttention, OtherLayoutsHaveTheSameBits) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const std::vector<std::pair<Placements, Placements>> layouts = {
      {{Replicate(), Replicate()}, {Replicate(), Replicate()}},
      {{Shard(0), Shard(1)}, {Replicate(), Replicate()}},
      {{Shard(1), Shard(0)}, {Shard(0), Shard(1)}},
      {{Shard(0), Shard(0)}, {Shard(1), Shard(0)}},
      {{Shard(0), Shard(2, {.unit = 2})}, {Shard(0), Replicate()}},
      {{Replicate(), Shard(2, {.unit = 2})}, {Shard(2, {.unit = 2}), Replicate()}},
      {{Shard(3), Replicate()}, {Replicate(), Shard(3)}},
      {{Shard(1), Shard(1)}, {Replicate(), Shard(1)}},
  };
  for_each_case(
      [&](const Case& c, const Inputs& inputs, const Lattice& lattice, bool has_labels, const Results& expected) {
        if (c.queries > 256 || lattice.sequence == 1) {
          return;
        }
        for (const auto& [query, key] : layouts) {
          const bool cuts_positions = query[1].is_shard(2);
          if (cuts_positions && (!has_labels || c.queries != 16 || c.keys != 16)) {
            continue;  // cuts between leaves of 2
          }
          const Placed placed{mesh, query, key, has_labels};
          run_exact(mesh, lattice,
                    [&](int64_t) { expect_same(run(c, inputs, placed, Way::kAny), expected, placed.str()); });
        }
      });
}

// The operator by itself gathers what it needs whole.
TEST(ExactAttention, TheOperatorGathersPositionsAndWidths) {
  const Case& c = kCases[1];
  const Inputs inputs = inputs_of(c, at::kFloat);
  const Results expected = on_one(c, inputs, {}, false, Way::kParts);
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (const Placements& layout :
       {Placements{Shard(2), Shard(0)}, Placements{Shard(1), Shard(3)}, Placements{Shard(2), Shard(2)}}) {
    run_exact(mesh, {}, [&](int64_t) {
      const at::Tensor query = distribute(inputs.query, mesh, layout).set_requires_grad(true),
                       key = distribute(inputs.key, mesh, layout).set_requires_grad(true),
                       value = distribute(inputs.value, mesh, layout).set_requires_grad(true);
      const at::Tensor out = dtensor::attention(
          query, key, value, {.is_causal = true, .scale = 1 / std::sqrt(static_cast<double>(kWidth))});
      out.backward(distribute(inputs.grad, mesh, layout));
      expect_same(
          {full_tensor(out.detach()), full_tensor(query.grad()), full_tensor(key.grad()), full_tensor(value.grad())},
          expected, layout::str(mesh, layout));
    });
  }
}

// Gradients of gradients, which run in parts.
Results second_gradients(const Inputs& inputs, const Placed& placed, Way way) {
  const auto leaf = [&](const at::Tensor& x) { return placed.put(x, placed.query).detach().set_requires_grad(true); };
  const at::Tensor query = leaf(inputs.query), key = leaf(inputs.key), value = leaf(inputs.value),
                   grad = leaf(inputs.grad);
  const at::Tensor out = way == Way::kParts ? dtensor::attention_by_parts(query, key, value, {}, {.is_causal = true})
                                            : at::scaled_dot_product_attention(query, key, value, {}, 0.0, true);
  const auto first = torch::autograd::grad({out}, {query, key, value}, {grad}, std::nullopt, /*create_graph=*/true);
  const auto second =
      torch::autograd::grad({first[0], first[1]}, {query, key, value, grad},
                            {placed.put(inputs.query.cos(), placed.query), placed.put(inputs.key.cos(), placed.query)});
  Results results;
  for (const at::Tensor& x : second) {
    results.push_back(full_tensor(x.detach()).contiguous());
  }
  return results;
}

TEST(ExactAttention, GradientsOfGradientsHaveTheBitsOfTheParts) {
  const Inputs inputs = inputs_of(kCases[1], at::kDouble);
  Results expected;
  run_exact(Mesh(), {}, [&](int64_t) { expected = second_gradients(inputs, {Mesh(), {}, {}, true}, Way::kParts); });
  for (const char* text : {"1", "dp=2", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    const Placed placed{
        mesh, mesh.ndim() == 2 ? Placements{Shard(0), Shard(1)} : Placements(mesh.ndim(), Shard(0)), {}, true};
    run_exact(mesh, {},
              [&](int64_t) { expect_same(second_gradients(inputs, placed, Way::kAny), expected, placed.str()); });
  }
}

// The control: leaves of positions and of groups enter, so other leaves are other bits; in `fast` nothing changes.
TEST(ExactAttention, AnotherLatticeGivesOtherBits) {
  const Case& c = kCases[4];
  const Inputs inputs = inputs_of(c, at::kFloat);
  const Results one = on_one(c, inputs, {8, 1, 8}, true, Way::kBlocks),
                positions = on_one(c, inputs, {8, 4, 8}, true, Way::kBlocks),
                heads = on_one(c, inputs, {8, 1, 2}, true, Way::kBlocks);
  EXPECT_FALSE(bits(one[0]).equal(bits(positions[0])));
  EXPECT_FALSE(bits(one[2]).equal(bits(positions[2])));
  EXPECT_TRUE(bits(one[0]).equal(bits(heads[0])));
  EXPECT_FALSE(bits(one[2]).equal(bits(heads[2])));
}

TEST(ExactAttention, RunsInPartsWhereItMust) {
  run_on(Mesh::parse("a=2"), [&](int64_t) {
    const Mesh mesh = Mesh::parse("a=2");
    const at::Tensor x = distribute(waves({2, 4, 8, 6}), mesh, {Shard(0)}).set_requires_grad(true);
    const auto node = [&](const at::Tensor& q, double dropout, const std::optional<at::Tensor>& mask) {
      return at::scaled_dot_product_attention(q, x, x, mask, dropout).grad_fn()->name();
    };
    EXPECT_EQ(node(x, 0, {}), "FusedAttentionBackward");  // fast
    dtensor::set_numerics(Numerics::kExact);
    EXPECT_EQ(node(x, 0, {}), "AttentionBackward");
    EXPECT_EQ(node(x, 0.5, {}), "ContractBackward");
    EXPECT_EQ(node(x, 0, waves({8, 8}).set_requires_grad(true)), "ContractBackward");
    EXPECT_EQ(node(redistribute(x, mesh, {Shard(2)}), 0, {}), "ContractBackward");
  });
}

}  // namespace
}  // namespace tessera::ranks::attention_exact_test
