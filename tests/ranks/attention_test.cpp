// scaled_dot_product_attention of DTensors against libtorch's on one device: every argument, values and gradients.

#include <ATen/ops/scaled_dot_product_attention.h>

#include "tests/ranks/support.h"

namespace tessera::ranks {
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
};

const Case kCases[] = {
    {"plain"},
    {"causal", 4, 5, 5, true},
    {"more keys than queries", 4, 3, 7},
    {"grouped heads", 2, 5, 5, true},
    {"boolean mask with an empty row", 4, 5, 5, false, true},
    {"mask that is added", 4, 5, 5, false, false, true},
    {"scale", 4, 5, 5, false, false, false, 0.3},
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
  for (at::Tensor* x : {&query, &key, &value}) x->set_requires_grad(true);
  std::optional<at::Tensor> mask;
  if (c.with_bool_mask) mask = bool_mask(c);
  if (c.with_float_mask) mask = waves({c.queries, c.keys}, 0.7);
  const at::Tensor out = at::scaled_dot_product_attention(query, key, value, mask, 0.0, c.is_causal, c.scale, c.key_heads != 4);
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
    const at::Tensor query = waves({2, 4, c.queries, 6}), key = waves({2, c.key_heads, c.keys, 6}, 0.61), value = waves({2, c.key_heads, c.keys, 3}, 0.23);
    const Result one = run(c, query.clone(), key.clone(), value.clone());
    run_on(mesh, [&](int64_t) {
      for (const Placements& layout : {Placements{Replicate(), Replicate()}, Placements{Shard(0), Shard(1)}, Placements{Shard(1), Replicate()},
                                       Placements{Shard(2), Shard(0)}, Placements{Shard(0), Shard(3)}}) {
        SCOPED_TRACE(layout::str(mesh, layout));
        const Result many = run(c, distribute(query, mesh, layout), distribute(key, mesh, layout), distribute(value, mesh, layout));
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
      if (rank != 0) return;
      if (!expected.defined()) expected = found;
      EXPECT_LE(error_of(found, expected), 1e-13) << layout::str(mesh, layout);
    });
  }
}

TEST(Attention, SaysWhatIsAccepted) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto x = [&] { return distribute(waves({2, 4, 5, 6}), mesh, "{a: S(0)}"); };
  EXPECT_SAYS(failure_on(2, [&](int64_t) { at::scaled_dot_product_attention(x(), distribute(waves({2, 4, 5, 7}), mesh, "{a: S(0)}"), x()); }), "one width");
  EXPECT_SAYS(failure_on(2, [&](int64_t) { at::scaled_dot_product_attention(x(), x(), x(), at::ones({5, 5}), 0.0, true); }), "not both");
}

}  // namespace
}  // namespace tessera::ranks
