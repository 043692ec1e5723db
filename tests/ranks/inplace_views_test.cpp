// transpose_, squeeze_ and their kin: what a tensor becomes, and what its base, its aliases and its gradient see of it.
#include "tests/ranks/functions.h"

namespace tessera::ranks::inplace_views_test {
namespace {

// Of a 4 x 6 matrix.
const Functions& functions() {
  static const Functions all = {
      {"transpose_", [](const at::Tensor& x) { return (x * 2).transpose_(0, 1); }},
      {"swapaxes_", [](const at::Tensor& x) { return (x * 2).swapaxes_(0, -1); }},
      {"t_, written to", [](const at::Tensor& x) { return (x * 2).t_().mul_(waves({6, 4}, 0.5)); }},
      {"unsqueeze_", [](const at::Tensor& x) { return (x * 2).unsqueeze_(1); }},
      {"squeeze_", [](const at::Tensor& x) { return x.unsqueeze(0).mul(2).unsqueeze_(2).squeeze_(); }},
      {"squeeze_ of a dim", [](const at::Tensor& x) { return x.sum(1, /*keepdim=*/true).squeeze_(-1); }},
      {"squeeze_ of dims",
       [](const at::Tensor& x) { return (x.view({4, 1, 6, 1}) * 2).squeeze_(at::IntArrayRef({1, 3})); }},
      {"as_strided_, as it is",
       [](const at::Tensor& x) { return x.mean(1, /*keepdim=*/true).as_strided_({4, 1}, {1, 7}); }},
      {"as_strided_", [](const at::Tensor& x) { return (x * 2).as_strided_({3, 2}, {1, 6}, 2); }},
      {"as_strided_, written to",
       [](const at::Tensor& x) { return (x * 2).as_strided_({3, 2}, {1, 6}, 2).mul_(waves({3, 2}, 0.5)); }},
      {"of a sum", [](const at::Tensor& x) { return x.matmul(waves({6, 5})).t_().add_(1); }},
      {"of a view",
       [](const at::Tensor& x) {
         at::Tensor view = (x * 2).slice(1, 0, 1);
         return view.squeeze_(1);
       }},
      {"of a view, its base",
       [](const at::Tensor& x) {
         const at::Tensor base = x * 2;
         base.slice(1, 0, 1).squeeze_(1);
         return base;
       }},
      {"of a view, written to, its base",
       [](const at::Tensor& x) {
         const at::Tensor base = x * 2;
         base.slice(1, 1, 5).t_().mul_(waves({4, 4}, 0.5));
         return base;
       }},
      {"of a view, written to",
       [](const at::Tensor& x) {
         const at::Tensor base = x * 2;
         at::Tensor view = base.slice(1, 1, 5);
         return view.t_().mul_(waves({4, 4}, 0.5));
       }},
      {"of a view, its base written to",
       [](const at::Tensor& x) {
         at::Tensor base = x * 2, view = base.slice(1, 1, 5).t_();
         base.mul_(waves({4, 6}, 0.5));
         return view * 1;
       }},
      {"of a view, a view of it written to",
       [](const at::Tensor& x) {
         const at::Tensor base = x * 2;
         at::Tensor view = base.slice(1, 1, 5);
         view.t_().select(0, 3).mul_(waves({4}, 0.5));
         return view + base.slice(1, 0, 4);
       }},
      {"quantile", [](const at::Tensor& x) { return at::quantile(x, 0.3, 1); }},
      {"quantiles", [](const at::Tensor& x) { return at::quantile(x, at::tensor({0.2, 0.9}, at::kDouble), 0); }},
  };
  return all;
}

TEST(InPlaceViews, AreThoseOfOneDevice) { expect_those_of_one_device(functions(), waves({4, 6})); }

TEST(InPlaceViews, ChangeTheTensorAndNotItsAliases) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor x = distribute(integers({4, 6}), mesh, {layout::Shard(0)});
    const at::Tensor alias = x.detach();
    EXPECT_TRUE(x.t_().is_same(x));
    EXPECT_EQ(layout::str(mesh, spec_of(x)->placements), "{a: S(1)}");
    EXPECT_EQ(x.sizes(), at::IntArrayRef({6, 4}));
    EXPECT_EQ(x.strides(), at::IntArrayRef({1, 6}));
    EXPECT_EQ(layout::str(mesh, spec_of(alias)->placements), "{a: S(0)}");
    x.add_(1);
    EXPECT_TRUE(at::equal(full_tensor(alias), integers({4, 6}) + 1));
    EXPECT_TRUE(at::equal(full_tensor(x), integers({4, 6}).t() + 1));
  });
}

TEST(InPlaceViews, OfParameters) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor weight = distribute(waves({4, 6}), mesh, {layout::Shard(0)}).requires_grad_(), x = waves({3, 4});
    EXPECT_THROW(weight.t_(), std::exception);  // a leaf
    {
      const at::NoGradGuard no_grad;
      weight.t_();
    }
    x.matmul(weight.t()).sum().backward();
    EXPECT_LE(error_of(full_tensor(weight.grad()), x.sum(0).expand({6, 4})), 1e-14);
    EXPECT_THROW(weight.detach().t_(), std::exception);  // as on one device: it would not reach the parameter
  });
}

// A view would be replayed in backward from the sizes that its base has by then.
TEST(InPlaceViews, OfABaseOfLivingViewsAreRefused) {
  const Mesh mesh = Mesh::parse("a=2");
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           const at::Tensor x = distribute(waves({4, 4}), mesh, {layout::Shard(0)}),
                                            row = x.select(0, 1);
                           x.t_();
                         }),
              "[aten::t_] other tensors are views of this one");
  run_on(mesh, [&](int64_t) {
    const at::Tensor x = distribute(waves({4, 4}), mesh, {layout::Shard(0)}),
                     labels = distribute(integers({4, 4}, at::kLong), mesh, {layout::Shard(0)});
    x.select(0, 1).add_(1);
    EXPECT_NO_THROW(x.t_());  // the view is gone
    const at::Tensor row = labels.select(0, 1);
    EXPECT_NO_THROW(labels.t_());  // without gradients nothing is replayed
    EXPECT_TRUE(at::equal(full_tensor(row), integers({4, 4}, at::kLong).select(0, 1)));
  });
}

}  // namespace
}  // namespace tessera::ranks::inplace_views_test
