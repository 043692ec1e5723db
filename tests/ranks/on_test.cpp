// Tensors that are at one coordinate of an axis and nowhere else.
#include <mutex>

#include "tests/ranks/support.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>

#include "tessera/comm/call/call.h"

namespace tessera::ranks::on_test {
namespace {

using layout::On;
using layout::Replicate;
using layout::Shard;

std::string layout_of(const at::Tensor& x) { return spec_of(x).layout_str(); }

// The value, the layout, and that other ranks hold nothing.
void expect_is(const at::Tensor& x, const at::Tensor& value, const std::string& layout) {
  EXPECT_EQ(layout_of(x), layout);
  EXPECT_EQ(x.sizes(), value.sizes());
  const Spec& spec = spec_of(x);
  const bool holds = spec->holds(*spec->mesh.coord_of(comm::RankContext::require().rank));
  const at::Tensor part = to_local(x);
  EXPECT_TRUE(holds || part.numel() == 0) << layout;
  EXPECT_LE(error_of(full_tensor(x), value), 1e-14) << layout;
}

TEST(On, IsDistributedGatheredAndMoved) {
  const Mesh mesh = Mesh::parse("pp=3,tp=2");
  run_on(mesh, [&](int64_t) {
    for (const at::Tensor& value : {integers({6, 4}), integers({5}), integers({})}) {
      const at::Tensor x = distribute(value, mesh, "{pp: On(2)}");
      expect_is(x, value, "{pp: On(2), tp: R}");
      expect_is(redistribute(x, "{pp: On(0)}"), value, "{pp: On(0), tp: R}");
      expect_is(redistribute(x, "{pp: On(0), tp: On(1)}"), value, "{pp: On(0), tp: On(1)}");
      expect_is(redistribute(x, "{}"), value, "{pp: R, tp: R}");
    }
    const at::Tensor value = integers({6, 4});
    const at::Tensor x = distribute(value, mesh, "{pp: On(1), tp: S(0)}");
    EXPECT_EQ(to_local(x).sizes(),
              c10::IntArrayRef(x.sizes().empty()
                                   ? Sizes{}
                                   : spec_of(x).local_sizes(*mesh.coord_of(comm::RankContext::require().rank))));
    expect_is(redistribute(x, "{pp: S(0), tp: S(1)}"), value, "{pp: S(0), tp: S(1)}");
  });
}

TEST(On, CallsRunAtHome) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor a = waves({4, 6}), b = waves({6, 2}, 0.2), c = waves({4, 6}, 0.7);
    const at::Tensor x = distribute(a, mesh, "{pp: On(0), tp: S(1)}"), w = distribute(b, mesh, "{pp: On(1), tp: S(0)}");
    // The last of the operands; the result is there, and so are the sums inside.
    expect_is(x.matmul(w), a.matmul(b), "{pp: On(1), tp: P}");
    expect_is((x + 1).exp().sum(), (a + 1).exp().sum(), "{pp: On(0), tp: P}");
    const at::Tensor y = distribute(c, mesh, "{pp: S(0), tp: S(1)}");
    expect_is(x * y, a * c, "{pp: On(0), tp: S(1)}");
    expect_is(x * c, a * c, "{pp: On(0), tp: S(1)}");
    expect_is(at::softmax(x, 1), at::softmax(a, 1), "{pp: On(0), tp: S(1)}");
    expect_is(x.t(), a.t(), "{pp: On(0), tp: S(0)}");
    expect_is(x.select(0, 1), a.select(0, 1), "{pp: On(0), tp: S(0)}");
    expect_is(x.reshape({2, 2, 6}).sum(0), a.reshape({2, 2, 6}).sum(0), "{pp: On(0), tp: S(1)}");
    expect_is(at::zeros_like(x), at::zeros_like(a), "{pp: On(0), tp: S(1)}");
    for (const at::Tensor& part : x.split(2, 0)) {
      EXPECT_EQ(layout_of(part), "{pp: On(0), tp: S(1)}");
    }
    expect_is(at::cat({x, y}, 0), at::cat({a, c}, 0), "{pp: On(0), tp: S(1)}");
  });
}

// Ranks elsewhere take no part in what a call does at home.
TEST(On, NobodyElseRunsACollective) {
  class Counter : public comm::Watcher {
   public:
    void on_begin(const comm::Call&) override { ++calls; }
    void on_end(const comm::Call&, bool) override {}
    int64_t calls = 0;
  };
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t rank) {
    const at::Tensor x = distribute(waves({4, 6}), mesh, "{pp: On(1), tp: S(1)}");
    const auto counter = std::make_shared<Counter>();
    comm::RankContext::require().watchers.push_back(counter);
    const at::Tensor y = (x.sum(1) * x.sum(1)).relu();
    EXPECT_EQ(counter->calls > 0, rank >= 2);
    EXPECT_EQ(to_local(y).numel() > 0, rank >= 2);
  });
}

TEST(On, WhatIsWrittenStays) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor a = waves({4, 6}), b = waves({4, 6}, 0.2);
    const at::Tensor x = distribute(a, mesh, "{pp: On(0), tp: S(1)}"), y = distribute(b, mesh, "{pp: On(1), tp: S(1)}");
    x.add_(y, 2);
    expect_is(x, a + 2 * b, "{pp: On(0), tp: S(1)}");
    x.select(0, 1).fill_(3);
    at::Tensor expected = a + 2 * b;
    expected.select(0, 1).fill_(3);
    expect_is(x, expected, "{pp: On(0), tp: S(1)}");
    // What is written everywhere makes the call run everywhere.
    const at::Tensor z = distribute(a, mesh, "{tp: S(1)}");
    z.mul_(y);
    expect_is(z, a * b, "{pp: R, tp: S(1)}");
    at::Tensor plain = a.clone();
    plain.copy_(y);
    EXPECT_TRUE(at::equal(plain, b));
    at::_foreach_add_({x, x}, 1);
    expect_is(x, expected + 2, "{pp: On(0), tp: S(1)}");
  });
  EXPECT_SAYS(failure_on(4,
                         [&](int64_t) {
                           const at::Tensor x = distribute(waves({4}), mesh, "{pp: On(0)}");
                           at::Tensor out = distribute(waves({4}), mesh, "{pp: On(1)}");
                           at::Tensor index = distribute(at::zeros({4}, at::kLong), mesh, "{pp: On(0)}");
                           at::sort_out(out, index, x);
                         }),
              "writes at two places of axis pp");
}

TEST(On, GradientsAreWhereTheTensorIs) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor a = waves({4, 6}), b = waves({6, 2}, 0.2), c = waves({2, 3}, 0.4);
    const at::Tensor p = a.clone().requires_grad_(), q = b.clone().requires_grad_(), r = c.clone().requires_grad_();
    const at::Tensor x = distribute(a, mesh, "{}").requires_grad_();
    const at::Tensor w = distribute(b, mesh, "{pp: On(0), tp: S(1)}").requires_grad_();
    const at::Tensor v = distribute(c, mesh, "{pp: On(1), tp: S(0)}").requires_grad_();
    // Two stages.
    const at::Tensor loss = x.matmul(w).tanh().matmul(v).square().mean();
    EXPECT_EQ(spec_of(loss)->placements[0], On(1));
    loss.backward();
    p.matmul(q).tanh().matmul(r).square().mean().backward();
    EXPECT_LE(error_of(full_tensor(w.grad()), q.grad()), 1e-14);
    EXPECT_LE(error_of(full_tensor(v.grad()), r.grad()), 1e-14);
    EXPECT_LE(error_of(full_tensor(x.grad()), p.grad()), 1e-14);
    EXPECT_EQ(layout_of(v.grad()), "{pp: On(1), tp: S(0)}");
    EXPECT_EQ(layout_of(w.grad()), "{pp: On(0), tp: S(1)}");
  });
}

// Whoever reads a value elsewhere keeps it there; the next place gets it from the last, until somebody writes.
TEST(On, AValueIsSentOnceToEachPlace) {
  const Mesh mesh = Mesh::parse("pp=3");
  run_on(mesh, [&](int64_t rank) {
    const at::Tensor a = waves({4, 6});
    const at::Tensor x = distribute(a, mesh, "{pp: On(0)}"), ones = at::ones({4, 6}, at::kDouble);
    const at::Tensor y = distribute(ones, mesh, "{pp: On(1)}"), z = distribute(ones, mesh, "{pp: On(2)}");
    trace::Ledger& ledger = comm::RankContext::require().ledger;
    ledger.clear();
    const auto sends = [&] { return ledger.calls_of("send", "pp"); };
    expect_is(x * y, a, "{pp: On(1)}");
    expect_is((x + y) * x, (a + 1) * a, "{pp: On(1)}");
    EXPECT_EQ(sends(), 1) << rank;
    expect_is(x * z, a, "{pp: On(2)}");
    expect_is(x * y, a, "{pp: On(1)}");  // it is still there
    EXPECT_EQ(sends(), 2);
    x.mul_(2);
    expect_is(x * y, 2 * a, "{pp: On(1)}");
    EXPECT_EQ(sends(), 3);
  });
}

TEST(On, RandomNumbersAreThoseOfOneDevice) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  for (const bool is_stock : {false, true}) {
    run_on(mesh, [&](int64_t) {
      const auto draw = [&](const char* layout) {
        dtensor::set_generator(is_stock ? dtensor::GeneratorKind::kStock : dtensor::GeneratorKind::kCounter);
        dtensor::manual_seed(3);
        const at::Tensor x = distribute(waves({4, 6}).to(at::kFloat), mesh, layout);
        std::vector<at::Tensor> drawn = {at::rand_like(x), std::get<0>(at::native_dropout(x, 0.5, true)),
                                         at::empty_like(x).normal_(), at::bernoulli(x.abs())};
        drawn.push_back(at::rand_like(distribute(waves({5}), mesh, "{}")));  // what comes after
        for (at::Tensor& each : drawn) {
          each = full_tensor(each);
        }
        return drawn;
      };
      const auto one = draw("{}"), other = draw("{pp: On(1), tp: S(0)}");
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(at::equal(one[i], other[i])) << i << " stock " << is_stock;
      }
    });
  }
}

TEST(On, KernelsOfTheirOwnSeeTheWholeValue) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor a = waves({4, 6});
    const at::Tensor x = distribute(a, mesh, "{pp: On(1), tp: S(1)}");
    EXPECT_NEAR(x.sum().item<double>(), a.sum().item<double>(), 1e-12);
    EXPECT_TRUE(at::equal(x, distribute(a, mesh, "{}")));
    EXPECT_EQ(full_tensor(at::nonzero(x > 0)).size(0), at::nonzero(a > 0).size(0));
    expect_is(x.detach(), a, "{pp: On(1), tp: S(1)}");
    const at::Tensor norm = at::_foreach_norm({x, distribute(a, mesh, "{pp: On(0)}")}, 2)[0];
    EXPECT_LE(error_of(full_tensor(norm), a.norm()), 1e-14);
    at::Tensor drawn = at::empty_like(x).uniform_();
    EXPECT_EQ(layout_of(drawn), "{pp: On(1), tp: S(1)}");
    EXPECT_LE(full_tensor(drawn).max().item<double>(), 1);
    EXPECT_EQ(layout_of(x), "{pp: On(1), tp: S(1)}");
  });
}

TEST(On, InExactNumericsSumsRunAtHome) {
  const Mesh mesh = Mesh::parse("pp=2,tp=2");
  run_on(mesh, [&](int64_t) {
    dtensor::set_numerics(dtensor::Numerics::kExact);
    const at::Tensor a = waves({4, 6}).to(at::kFloat), b = waves({6, 8}, 0.2).to(at::kFloat);
    const at::Tensor x = distribute(a, mesh, "{pp: On(1), tp: S(0)}"), w = distribute(b, mesh, "{}");
    const at::Tensor whole = distribute(a, mesh, "{}").matmul(w);
    const at::Tensor found = x.matmul(w);
    EXPECT_EQ(spec_of(found)->placements[0], On(1));
    EXPECT_TRUE(at::equal(full_tensor(found), full_tensor(whole)));
    x.mul_(2);
    EXPECT_EQ(layout_of(x), "{pp: On(1), tp: S(0)}");
    EXPECT_TRUE(at::equal(full_tensor(x), a * 2));
  });
}

}  // namespace
}  // namespace tessera::ranks::on_test
