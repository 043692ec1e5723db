// Writes of distributed values into plain tensors, of which every rank has its own, against one device: bit-equal in
// every layout.
#include "tessera/watch/explain.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::plain_writes_test {
namespace {

using dtensor::Mode;
using dtensor::ModeScope;

const char* const kMeshes[] = {"a=4", "a=2,b=2"};

// Calls `body` with a value in every layout on every mesh, on every rank.
void on_layouts(const at::Tensor& value, const std::function<void(const at::Tensor& x)>& body) {
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      for (const Placements& placements : plain_layouts(mesh, value.dim())) {
        SCOPED_TRACE(c10::str(layout::str(mesh, placements), " on ", mesh.str(), ", rank ", rank));
        body(spread(value, mesh, placements));
      }
    });
  }
}

at::Tensor order() { return at::tensor({3, 0, 4, 1, 2}, at::kLong); }
at::Tensor order_of_all() { return order().unsqueeze(1).expand({5, 4}); }

// Writes `x` into `p`, both of 5 x 4.
using Write = std::function<void(at::Tensor p, const at::Tensor& x)>;
using Named = std::pair<const char*, Write>;

// That have a gradient with respect to `x`.
const std::vector<Named>& smooth_writes() {
  static const std::vector<Named> all = {
      {"copy_", [](at::Tensor p, const at::Tensor& x) { p.copy_(x); }},
      {"copy_ of a row", [](at::Tensor p, const at::Tensor& x) { p.copy_(x.select(0, 4)); }},
      {"copy_ into a column", [](at::Tensor p, const at::Tensor& x) { p.select(1, 2).copy_(x.select(1, 0)); }},
      {"copy_ into a row", [](at::Tensor p, const at::Tensor& x) { p[1].copy_(x[4]); }},
      {"copy_ into rows", [](at::Tensor p, const at::Tensor& x) { p.slice(0, 1, 3).copy_(x.slice(0, 3, 5)); }},
      {"copy_ into a transpose", [](at::Tensor p, const at::Tensor& x) { p.t().copy_(x.t()); }},
      {"index = ", [](at::Tensor p, const at::Tensor& x) { p.index_put_({at::indexing::Slice(), 1}, x.select(1, 3)); }},
      {"index_put_", [](at::Tensor p, const at::Tensor& x) { p.index_put_({order()}, x); }},
      {"index_put_ adding", [](at::Tensor p, const at::Tensor& x) { p.index_put_({order().remainder(2)}, x, true); }},
      {"index_copy_", [](at::Tensor p, const at::Tensor& x) { p.index_copy_(0, order(), x); }},
      {"index_add_", [](at::Tensor p, const at::Tensor& x) { p.index_add_(0, order(), x, 2); }},
      {"scatter_", [](at::Tensor p, const at::Tensor& x) { p.scatter_(0, order_of_all(), x); }},
      {"scatter_add_", [](at::Tensor p, const at::Tensor& x) { p.scatter_add_(0, order_of_all().remainder(3), x); }},
      {"fill_", [](at::Tensor p, const at::Tensor& x) { p.fill_(x[2][3]); }},
      {"zero_, add_", [](at::Tensor p, const at::Tensor& x) { p.zero_().add_(x); }},
      {"add_", [](at::Tensor p, const at::Tensor& x) { p.add_(x, 3); }},
      {"mul_", [](at::Tensor p, const at::Tensor& x) { p.mul_(x).mul_(x); }},
      {"addcmul_", [](at::Tensor p, const at::Tensor& x) { p.addcmul_(x, x, 2); }},
      {"addmm_", [](at::Tensor p, const at::Tensor& x) { p.addmm_(x, at::eye(4, at::kDouble).add(1)); }},
      {"lerp_", [](at::Tensor p, const at::Tensor& x) { p.lerp_(x, 0.25); }},
  };
  return all;
}

const std::vector<Named>& other_writes() {
  static const std::vector<Named> all = {
      {"masked_fill_", [](at::Tensor p, const at::Tensor& x) { p.masked_fill_(x.gt(0), 7); }},
      {"masked_scatter_", [](at::Tensor p, const at::Tensor& x) { p.masked_scatter_(p.gt(0), x); }},
      {"mask = ", [](at::Tensor p, const at::Tensor& x) { p.index_put_({x.gt(0)}, at::full({}, 7, at::kDouble)); }},
      {"copy_ of integers", [](at::Tensor p, const at::Tensor& x) { p.copy_(x.to(at::kInt)); }},
      {"add out=", [](at::Tensor p, const at::Tensor& x) { at::add_out(p, x, x); }},
      {"mul out= of itself", [](at::Tensor p, const at::Tensor& x) { at::mul_out(p, p, x); }},
      {"mm out=", [](at::Tensor p, const at::Tensor& x) { at::mm_out(p, x, x.slice(0, 0, 4)); }},
      {"sum out=",
       [](at::Tensor p, const at::Tensor& x) {
         at::Tensor row = p[3];
         at::sum_out(row, x, 0);
       }},
      {"cat out=", [](at::Tensor p, const at::Tensor& x) { at::cat_out(p, {x.slice(0, 2, 5), x.slice(0, 0, 2)}); }},
      {"stack out=", [](at::Tensor p, const at::Tensor& x) { at::stack_out(p, {x[0], x[1], x[2], x[3], x[4]}); }},
      {"max out=",
       [](at::Tensor p, const at::Tensor& x) {
         at::Tensor most = p.select(1, 0), where = at::zeros({5}, at::kLong);
         at::max_out(most, where, x, 1);
         p.select(1, 1).copy_(where);
       }},
      {"var_mean out=",
       [](at::Tensor p, const at::Tensor& x) {
         at::Tensor var = p.select(1, 0), mean = p.select(1, 1);
         at::var_mean_out(var, mean, x, c10::IntArrayRef({1}), 1);
       }},
      {"out= of no elements",
       [](at::Tensor p, const at::Tensor& x) {
         at::Tensor out = at::empty({0}, at::kDouble);
         p.copy_(at::add_out(out, x, x));
       }},
  };
  return all;
}

TEST(PlainWrites, InEveryFormAndLayout) {
  const at::Tensor value = integers({5, 4}), before = integers({5, 4}).flip(0) - 2;
  for (const auto& writes : {smooth_writes(), other_writes()}) {
    on_layouts(value, [&](const at::Tensor& x) {
      for (const auto& [name, write] : writes) {
        for (int64_t time = 0; time < 2; ++time) {  // planned, and from the cache
          const at::Tensor expected = before + time, found = expected.clone(), y = x * (time + 1);
          EXPECT_EQ(spec_of(y)->placements, spec_of(x)->placements);
          write(expected, value * (time + 1));
          write(found, y);
          EXPECT_FALSE(dtensor::is_dtensor(found));
          EXPECT_TRUE(at::equal(found, expected)) << name << ", time " << time << "\n"
                                                  << found << "\ninstead of\n"
                                                  << expected;
        }
      }
      EXPECT_TRUE(at::equal(full_tensor(x), value));
    });
  }
}

TEST(PlainWrites, AreDifferentiable) {
  const at::Tensor value = integers({5, 4}), before = integers({5, 4}).flip(0) - 2, weights = integers({5, 4}).flip(1);
  on_layouts(value, [&](const at::Tensor& x) {
    for (const auto& [name, write] : smooth_writes()) {
      const at::Tensor one_device = value.clone().requires_grad_(), here = x.clone().requires_grad_();
      const at::Tensor own = before.clone().requires_grad_(), own_here = before.clone().requires_grad_();
      const auto run = [&](const at::Tensor& t, const at::Tensor& plain) {
        const at::Tensor target = plain * 2;
        write(target, t * 3);
        (target * target * weights + target * t).sum().backward();
      };
      run(one_device, own);
      run(here, own_here);
      EXPECT_TRUE(at::equal(full_tensor(here.grad()), one_device.grad())) << name;
      EXPECT_TRUE(at::equal(full_tensor(own_here.grad()), own.grad())) << name;
    }
  });
}

TEST(PlainWrites, ToWhatADerivativeReadsAreNoticed) {
  on_layouts(integers({5, 4}), [](const at::Tensor& x) {
    const at::Tensor p = at::ones({5, 4}, at::kDouble), y = x.detach().requires_grad_() * p;
    p.copy_(x);
    try {
      y.sum().backward();
      ADD_FAILURE() << "the derivative read what was written later";
    } catch (const c10::Error& error) {
      EXPECT_NE(base::message_of(error).find("modified by an inplace operation"), std::string::npos) << error.what();
    }
  });
}

// What the calls send, by the ledger and by explain.
struct Sent {
  int64_t ledger = 0, explained = 0;
  bool operator==(const Sent&) const = default;
};

Sent sent_by(const std::function<void()>& body) {
  trace::Ledger& ledger = comm::RankContext::require().ledger;
  ledger.clear();
  watch::Explain explain;
  body();
  explain.stop();
  return {ledger.total_bytes(), explain.report().bytes()};
}

TEST(PlainWrites, CostWhatRedistributeCosts) {
  const at::Tensor value = integers({5, 4});
  on_layouts(value, [&](const at::Tensor& x) {
    const auto same = [&] { return redistribute(x.clone(), Placements(spec_of(x)->mesh.ndim())); };
    const at::Tensor p = at::zeros({5, 4}, at::kDouble);
    for (int time = 0; time < 2; ++time) {
      const at::Tensor y = x.clone();
      const Sent written = sent_by(same), found = sent_by([&] { p.add_(y); });
      EXPECT_EQ(found.ledger, written.ledger);
      EXPECT_EQ(found.explained, written.ledger);
      EXPECT_EQ(found.ledger > 0, !spec_of(x)->is_replicated);
    }
    EXPECT_TRUE(at::equal(p, value * 2));
  });
}

TEST(PlainWrites, ExplicitShowsTheLineToWrite) {
  const at::Tensor value = integers({5, 4});
  on_layouts(value, [&](const at::Tensor& x) {
    const at::Tensor p = at::zeros({5, 4}, at::kDouble);
    const ModeScope strict(Mode::kExplicit);
    const Placements whole(spec_of(x)->mesh.ndim());
    for (int time = 0; time < 2 && !spec_of(x)->is_replicated; ++time) {
      try {
        p.copy_(x.clone());
        ADD_FAILURE() << "nobody wrote that redistribution";
      } catch (const c10::Error& error) {
        EXPECT_SAYS(base::message_of(error), "[copy_ ");
        EXPECT_SAYS(base::message_of(error),
                    c10::str("src = tessera::redistribute(src, \"", layout::str(spec_of(x)->mesh, whole), "\");"));
      }
      EXPECT_TRUE(at::equal(p, at::zeros_like(p)));
    }
    p.copy_(redistribute(x, whole));
    EXPECT_TRUE(at::equal(p, value));
  });
}

TEST(PlainWrites, BesideADistributedTensorThrow) {
  EXPECT_SAYS(failure_on(2,
                         [](int64_t) {
                           const at::Tensor x = distribute(integers({4, 4}), Mesh::parse("a=2"), "{a: S(0)}");
                           at::Tensor most = at::zeros({4}, at::kDouble),
                                      where = distribute(at::zeros({4}, at::kLong), Mesh::parse("a=2"), "{a: S(0)}");
                           at::max_out(most, where, x, 1);
                         }),
              "make all that it writes DTensors, or none");
}

TEST(PlainWrites, InExactNumericsHaveTheBitsOfOneRankOrThrow) {
  const at::Tensor value = integers({5, 4}), before = waves({5, 4});
  const auto run = [&](at::Tensor p, const at::Tensor& x) {
    p.add_(x, 0.3).mul_(x);
    p.select(1, 2).copy_(x.select(1, 0));
    return at::exp_out(p, p + x);
  };
  at::Tensor expected;
  run_on(Mesh::parse("a=1"), [&](int64_t) {
    dtensor::set_numerics(dtensor::Numerics::kExact);
    expected = run(before.clone(), distribute(value, Mesh::parse("a=1"), "{a: R}"));
  });
  on_layouts(value, [&](const at::Tensor& x) {
    dtensor::set_numerics(dtensor::Numerics::kExact);
    EXPECT_TRUE(at::equal(run(before.clone(), x), expected));
    try {
      at::Tensor p = at::zeros({5, 4}, at::kDouble);
      at::mm_out(p, x, at::eye(4, at::kDouble));
      ADD_FAILURE() << "a product of other bits";
    } catch (const c10::Error& error) {
      EXPECT_SAYS(base::message_of(error), "Compute the value first, and copy_ it");
    }
  });
}

}  // namespace
}  // namespace tessera::ranks::plain_writes_test
