// scaled_dot_product_attention of DTensors against libtorch's on one device: every argument, values and gradients.

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/dtensor/ops/attention.h"
#include "tessera/dtensor/ops/attention_parts.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::attention_test {
namespace {

using layout::Replicate;
using layout::Shard;

struct Case {
  const char* name;
  int64_t key_heads = 4;
  int64_t queries = 5, keys = 5;
  bool is_causal = false;
  bool with_bool_mask = false, with_float_mask = false;
  std::optional<double> scale = std::nullopt;
  int64_t value_width = 3;
};

const Case kCases[] = {
    {"plain"},
    {"causal", 4, 5, 5, true},
    {"more keys than queries", 4, 3, 7},
    {"grouped heads", 2, 5, 5, true},
    {"boolean mask with an empty row", 4, 5, 5, false, true},
    {"mask that is added", 4, 5, 5, false, false, true},
    {"scale", 4, 5, 5, false, false, false, 0.3},
    {"of one width", 4, 5, 7, false, false, false, std::nullopt, 6},
    {"of one width, causal", 4, 5, 5, true, false, false, 0.3, 6},
    {"of one width, causal, fewer keys", 4, 5, 3, true, false, false, std::nullopt, 6},
    {"of one width, grouped heads", 2, 5, 5, true, false, false, std::nullopt, 6},
    {"of one width, boolean mask with an empty row", 4, 5, 5, false, true, false, std::nullopt, 6},
};

struct Result {
  at::Tensor value, grad_query, grad_key, grad_value;
};

at::Tensor bool_mask(const Case& c) {
  at::Tensor mask = integers({c.queries, c.keys}) > -3;
  mask[1].fill_(false);
  return mask;
}

Result run(const Case& c, at::Tensor query, at::Tensor key, at::Tensor value) {
  for (at::Tensor* x : {&query, &key, &value}) {
    x->set_requires_grad(true);
  }
  std::optional<at::Tensor> mask;
  if (c.with_bool_mask) {
    mask = bool_mask(c);
  }
  if (c.with_float_mask) {
    mask = waves({c.queries, c.keys}, 0.7);
  }
  const at::Tensor out =
      at::scaled_dot_product_attention(query, key, value, mask, 0.0, c.is_causal, c.scale, c.key_heads != 4);
  (out * out).sum().backward();
  return {out.detach(), query.grad(), key.grad(), value.grad()};
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_LE(error_of(full_tensor(found), expected), 1e-13) << what;
}

TEST(Attention, EqualsOneDevice) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const at::Tensor query = waves({2, 4, c.queries, 6}), key = waves({2, c.key_heads, c.keys, 6}, 0.61),
                     value = waves({2, c.key_heads, c.keys, c.value_width}, 0.23);
    const Result one = run(c, query.clone(), key.clone(), value.clone());
    run_on(mesh, [&](int64_t) {
      for (const Placements& layout :
           {Placements{Replicate(), Replicate()}, Placements{Shard(0), Shard(1)}, Placements{Shard(1), Replicate()},
            Placements{Shard(2), Shard(0)}, Placements{Shard(0), Shard(3)}}) {
        SCOPED_TRACE(layout::str(mesh, layout));
        const Result many =
            run(c, distribute(query, mesh, layout), distribute(key, mesh, layout), distribute(value, mesh, layout));
        expect_equal(many.value, one.value, "value");
        expect_equal(many.grad_query, one.grad_query, "gradient of the query");
        expect_equal(many.grad_key, one.grad_key, "gradient of the key");
        expect_equal(many.grad_value, one.grad_value, "gradient of the value");
      }
    });
  }
}

TEST(Attention, DropoutDoesNotDependOnTheLayout) {
  const Mesh mesh = Mesh::parse("a=2");
  at::Tensor expected;
  for (const Placements& layout : {Placements{Replicate()}, Placements{Shard(0)}, Placements{Shard(1)}}) {
    run_on(mesh, [&](int64_t rank) {
      dtensor::manual_seed(3);
      const at::Tensor x = distribute(waves({2, 4, 5, 6}), mesh, layout);
      const at::Tensor found = full_tensor(at::scaled_dot_product_attention(x, x, x, {}, 0.5));
      if (rank != 0) {
        return;
      }
      if (!expected.defined()) {
        expected = found;
      }
      EXPECT_LE(error_of(found, expected), 1e-13) << layout::str(mesh, layout);
    });
  }
}

// The second derivative of `attention` at x, whose keys and values are computed from its queries.
template <typename Attention>
at::Tensor second_derivative(const at::Tensor& x, const Attention& attention) {
  const at::Tensor out = attention(x, x * 2, x.sin());
  const at::Tensor first =
      torch::autograd::grad({out.square().sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  return torch::autograd::grad({first.square().sum()}, {x})[0];
}

TEST(Attention, IsDifferentiatedTwice) {
  const Mesh mesh = Mesh::parse("a=2");
  const at::Tensor x = waves({2, 4, 5, 6});
  for (const bool has_mask : {false, true}) {  // libtorch's kernel, and ours
    const std::optional<at::Tensor> mask = has_mask ? std::optional(at::ones({5, 5}, at::kBool).tril()) : std::nullopt;
    const at::Tensor expected = second_derivative(
        x.clone().requires_grad_(), [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
          return dtensor::attention_by_parts(q, k, v, mask, {.is_causal = !has_mask});
        });
    run_on(mesh, [&](int64_t) {
      for (const char* layout : {"{a: R}", "{a: S(0)}", "{a: S(1)}", "{a: S(2)}"}) {
        const at::Tensor found =
            second_derivative(distribute(x, mesh, layout).requires_grad_(),
                              [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                                return at::scaled_dot_product_attention(q, k, v, mask, 0.0, !has_mask);
                              });
        EXPECT_LE(error_of(full_tensor(found), expected), 1e-12) << layout;
      }
    });
  }
}

// bf16 is rounded once, as on one device: products of its parts would round each score.
TEST(Attention, Of16BitsIsThatOfOneDevice) {
  const Mesh mesh = Mesh::parse("a=2");
  const at::Tensor x = waves({2, 4, 33, 8}).to(at::kBFloat16), expected = at::scaled_dot_product_attention(x, x, x);
  run_on(mesh, [&](int64_t) {
    const at::Tensor part = distribute(x, mesh, "{a: S(1)}");
    EXPECT_TRUE(at::equal(full_tensor(at::scaled_dot_product_attention(part, part, part)), expected));
  });
}

TEST(Attention, SaysWhatIsAccepted) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto x = [&] { return distribute(waves({2, 4, 5, 6}), mesh, "{a: S(0)}"); };
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           at::scaled_dot_product_attention(x(), distribute(waves({2, 4, 5, 7}), mesh, "{a: S(0)}"),
                                                            x());
                         }),
              "one width");
  EXPECT_SAYS(
      failure_on(2, [&](int64_t) { at::scaled_dot_product_attention(x(), x(), x(), at::ones({5, 5}), 0.0, true); }),
      "not both");
}

}  // namespace
}  // namespace tessera::ranks::attention_test
