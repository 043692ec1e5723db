// Operators of many kinds by rules of their own, gradients included; and operands that are one tensor.
#include <limits>

#include <c10/core/impl/COW.h>

#include "tessera/base/hash.h"
#include "tessera/dtensor/state/state.h"
#include "tests/ranks/functions.h"

namespace tessera::ranks::operators_test {
namespace {

// 30 rows of a 4 x 6 matrix.
at::Tensor rows(const at::Tensor& x, double from) {
  return at::cat({x, x + from, x * from, x.sin(), x.cos(), x.exp(), x + 5, x.slice(0, 0, 2)});
}

// What a batch norm gives, and what it keeps.
at::Tensor joined(const at::Tensor& y, const at::Tensor& mean, const at::Tensor& inverse) {
  return at::cat({y.flatten(), mean.flatten(), inverse.flatten()});
}

at::Tensor volume(const at::Tensor& x) { return at::cat({x, x.sin(), x * 3}).reshape({2, 1, 3, 4, 3}); }

// Of a 4 x 6 matrix.
const Functions& arithmetic() {
  static const Functions all = {
      {"a sum times itself",
       [](const at::Tensor& x) {
         const at::Tensor sum = x.sum();
         return sum * sum;
       }},
      {"a sum by itself",
       [](const at::Tensor& x) {
         const at::Tensor sum = x.sum();
         return sum / sum + sum;
       }},
      {"a sum times itself in place",
       [](const at::Tensor& x) {
         const at::Tensor sum = x.sum() * 1;
         return sum.detach().mul_(sum.detach()) + x;
       }},
      {"corrcoef", [](const at::Tensor& x) { return at::corrcoef(x.select(0, 1)) + x.sum(); }},
      {"cdist of batches", [](const at::Tensor& x) { return at::cdist(x, at::stack({x + 2, x * 3, x.cos()})); }},
      {"cdist of more than 25 rows", [](const at::Tensor& x) { return at::cdist(rows(x, 2), rows(x, 3) + 20); }},
      {"cdist of batches of more than 25 rows",
       [](const at::Tensor& x) { return at::cdist(rows(x, 2), at::stack({rows(x, 3), rows(x, 4)}) + 20); }},
      {"copysign with a number", [](const at::Tensor& x) { return at::copysign(x, -3.14) + x; }},
      {"xlogy with a number", [](const at::Tensor& x) { return at::xlogy(x, 2.5) + at::xlogy(1.5, x.abs() + 1); }},
      {"searchsorted with a number",
       [](const at::Tensor& x) { return at::searchsorted(std::get<0>(x.detach().flatten().sort()), 0.2) + x; }},
      {"bucketize with a number",
       [](const at::Tensor& x) { return at::bucketize(0.2, std::get<0>(x.detach().flatten().sort())) + x; }},
      {"isin with a number",
       [](const at::Tensor& x) { return at::isin(x.detach(), 0.0) + at::isin(0.0, x.detach()).to(at::kDouble) + x; }},
  };
  return all;
}

const Functions& copies() {
  static const Functions all = {
      {"unbind_copy", [](const at::Tensor& x) { return at::stack(at::unbind_copy(x, 1)); }},
      {"split_copy", [](const at::Tensor& x) { return at::split_copy(x, 4, 1)[1].mul_(2) + x.slice(1, 0, 2); }},
      {"split_with_sizes_copy",
       [](const at::Tensor& x) { return at::split_with_sizes_copy(x, {3, 1, 2}, 1)[2].mul_(2); }},
      {"unfold_copy", [](const at::Tensor& x) { return at::unfold_copy(x, 1, 3, 2); }},
      {"as_strided_copy", [](const at::Tensor& x) { return at::as_strided_copy(x * 1, {2, 3}, {6, 2}, 1); }},
      {"view_copy of a dtype",
       [](const at::Tensor& x) { return at::view_copy((x.detach() * 4).round(), at::kInt).sum() + x; }},
      {"view_as_real_copy",
       [](const at::Tensor& x) {
         return at::view_as_real_copy(at::view_as_complex_copy(x.detach().reshape({4, 3, 2}))).sum(2).sum() * x;
       }},
      {"_lazy_clone", [](const at::Tensor& x) { return at::_lazy_clone(x).mul(2); }},
      {"as_strided_scatter",
       [](const at::Tensor& x) {
         return at::as_strided_scatter(x * 1, x.slice(0, 0, 2).slice(1, 0, 3), {2, 3}, {6, 2}, 1);
       }},
  };
  return all;
}

const Functions& batch_norms() {
  static const Functions all = {
      {"_native_batch_norm_legit",
       [](const at::Tensor& x) {
         const auto [y, mean, inverse] = at::_native_batch_norm_legit(
             x.reshape({4, 3, 2}), x.select(0, 1).slice(0, 0, 3), {}, /*training=*/true, 0.1, 1e-5);
         return joined(y, mean, inverse);
       }},
      {"_native_batch_norm_legit that keeps statistics",
       [](const at::Tensor& x) {
         at::Tensor mean = at::zeros_like(x.detach().select(0, 0)), variance = mean + 1;
         const auto [y, m, i] = at::_native_batch_norm_legit(x, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5);
         return joined(y, mean, variance);
       }},
      {"batch_norm whose running statistics lie anywhere",
       [](const at::Tensor& x) {
         at::Tensor mean = x.detach().select(0, 0) * 1, variance = x.detach().select(0, 1).abs() + 1;
         return at::batch_norm(x, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5, false) + mean * 2 + variance;
       }},
      {"_batch_norm_with_update",
       [](const at::Tensor& x) {
         at::Tensor mean = at::zeros_like(x.detach().select(0, 0)), variance = mean + 1;
         const auto [y, m, i, reserve] =
             at::_batch_norm_with_update(x, x.select(0, 2), x.select(0, 3), mean, variance, 0.1, 1e-5);
         return joined(y, mean, variance);
       }},
  };
  return all;
}

const Functions& others() {
  static const Functions all = {
      {"dist", [](const at::Tensor& x) { return at::dist(x, x.cos(), 3); }},
      {"put",
       [](const at::Tensor& x) {
         return at::put(x, at::tensor({3, 17, -1}, at::kLong), x.select(0, 2).slice(0, 0, 3), /*accumulate=*/true);
       }},
      {"put_",
       [](const at::Tensor& x) {
         return (x * 2).put_(at::tensor({3, 17, -1}, at::kLong), x.select(0, 2).slice(0, 0, 3));
       }},
      {"take", [](const at::Tensor& x) { return at::take(x, at::tensor({3, 17, 5, 3}, at::kLong).view({2, 2})); }},
      {"masked_select", [](const at::Tensor& x) { return at::masked_select(x, waves({4, 6}, 0.8) > 0); }},
      {"masked_scatter_", [](const at::Tensor& x) { return (x * 2).masked_scatter_(waves({4, 6}, 0.8) > 0, x.cos()); }},
      {"renorm_", [](const at::Tensor& x) { return (x * 2).renorm_(2, 0, 0.5); }},
      {"pow_", [](const at::Tensor& x) { return (x.square() + 1).pow_(x); }},
      {"floor_divide_", [](const at::Tensor& x) { return (x.detach() * 20).floor_divide_(x.detach().cos()) + x; }},
      {"frexp",
       [](const at::Tensor& x) {
         const auto [mantissa, exponent] = at::frexp(x * 20);
         return mantissa * exponent;
       }},
      {"ldexp_", [](const at::Tensor& x) { return (x * 2).ldexp_(at::tensor({1, 2, 3, 0, -1, 5}, at::kLong)); }},
      {"igamma", [](const at::Tensor& x) { return at::igamma(waves({6}).abs(), x.abs() + 0.5); }},
      {"mvlgamma", [](const at::Tensor& x) { return at::mvlgamma(x + 4, 3); }},
      {"polygamma_", [](const at::Tensor& x) { return (x + 2).polygamma_(1); }},
      {"entr", [](const at::Tensor& x) { return at::special_entr(x.abs() + 0.1); }},
      {"xlog1py", [](const at::Tensor& x) { return at::special_xlog1py(x, x.abs()); }},
      {"zeta", [](const at::Tensor& x) { return at::special_zeta(3.5, x + 2) * x; }},
      {"legendre_polynomial", [](const at::Tensor& x) { return at::special_legendre_polynomial_p(x.detach(), 3) * x; }},
      {"max_pool3d", [](const at::Tensor& x) { return at::max_pool3d(volume(x), {2, 2, 2}, {1, 2, 1}, {1, 0, 1}); }},
      {"max_unpool2d",
       [](const at::Tensor& x) {
         const auto [most, where] = at::max_pool2d_with_indices(x.view({1, 1, 4, 6}), {2, 2});
         return at::max_unpool2d(most, where, {4, 6});
       }},
      {"grid_sample of volumes",
       [](const at::Tensor& x) {
         return at::grid_sampler(volume(x), x.reshape({2, 1, 2, 2, 3}), /*interpolation_mode=*/0, /*padding_mode=*/1,
                                 /*align_corners=*/false);
       }},
      {"affine_grid",
       [](const at::Tensor& x) {
         return at::affine_grid_generator(x.view({4, 2, 3}), {4, 2, 3, 5}, /*align_corners=*/false);
       }},
      {"affine_grid of volumes",
       [](const at::Tensor& x) {
         return at::affine_grid_generator(x.view({2, 3, 4}), {2, 1, 3, 2, 4}, /*align_corners=*/true);
       }},
      {"embedding with a row for padding",
       [](const at::Tensor& x) {
         return at::embedding(x, at::tensor({2, 0, 2, 3, 1, 2}, at::kLong), /*padding_idx=*/2);
       }},
      {"tensor_split",
       [](const at::Tensor& x) { return at::tensor_split(x, x.detach().mul(0).sum().to(at::kLong) + 3, 1).at(1); }},
  };
  return all;
}

TEST(Operators, AreThoseOfOneDevice) {
  for (const Functions& functions : {arithmetic(), copies(), batch_norms(), others()}) {
    expect_those_of_one_device(functions, waves({4, 6}));
  }
}

// A rank without elements adds nothing to a maximum, whatever the others have.
TEST(Operators, ExtremesOfWhatSomeRanksHoldNothingOf) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Mesh mesh = Mesh::parse("a=4");
  run_on(mesh, [&](int64_t) {
    const auto expect_all = [&](const at::Tensor& value,
                                at::Tensor (*over_dim)(const at::Tensor&, c10::IntArrayRef, bool)) {
      const at::Tensor rows = distribute(value, mesh, {layout::Shard(0)});
      EXPECT_TRUE(at::equal(full_tensor(over_dim(rows, {0}, false)), value[0])) << value.scalar_type();
      EXPECT_EQ(full_tensor(over_dim(rows, {}, false)).item().toDouble(), value[0][0].item().toDouble())
          << value.scalar_type();
    };
    expect_all(at::full({2, 40}, -kInfinity, at::kDouble), at::amax);
    expect_all(at::full({2, 40}, kInfinity, at::kFloat), at::amin);
    expect_all(at::full({2, 40}, std::numeric_limits<int64_t>::lowest(), at::kLong), at::amax);
    expect_all(at::full({2, 40}, 127, at::kChar), at::amin);
  });
}

// The gradient of a parameter is cut as the parameter is: each rank adds to the rows that it holds, but never to the
// one that pads.
TEST(Operators, LookupsOfACutParameterWithARowForPadding) {
  const at::Tensor value = waves({7, 3}), ids = at::tensor({2, 0, 2, 5, 1, 2, 6}, at::kLong);
  const auto gradient_at = [&](const at::Tensor& weight) {
    (at::embedding(weight, ids, /*padding_idx=*/2) * waves({7, 3}, 0.9)).sum().backward();
    return weight.grad();
  };
  const at::Tensor expected = gradient_at(value.clone().requires_grad_());
  const Mesh mesh = Mesh::parse("a=3");
  run_on(mesh, [&](int64_t) {
    const at::Tensor weight = distribute(value, mesh, {layout::Shard(0)}).set_requires_grad(true);
    dtensor::RankState::require().engine.parameters.add(weight, {"weight", base::hash_string("weight"), {}, {}});
    const at::Tensor gradient = gradient_at(weight);
    EXPECT_TRUE(spec_of(gradient)->placements[0].is_shard(0)) << spec_of(gradient).str();
    EXPECT_LE(error_of(full_tensor(gradient), expected), 1e-15);
    EXPECT_TRUE(full_tensor(gradient)[2].eq(0).all().item<bool>());
  });
}

// libtorch resizes the tensor, which would then lie otherwise than it says.
TEST(Operators, ThatWouldResizeWhatTheyWriteAreRefused) {
  EXPECT_SAYS(failure_on(2,
                         [](int64_t) {
                           const Mesh mesh = Mesh::parse("a=2");
                           distribute(waves({1}), mesh, {layout::Replicate()})
                               .addbmm_(distribute(waves({2, 3, 4}), mesh, {layout::Shard(1)}), waves({2, 4, 5}));
                         }),
              "gives [3, 5], which does not fit into");
}

// Memory that copies itself when it is written first may not be handed to every kernel of libtorch: none of ours is
// such.
TEST(Operators, NoPartIsALazyClone) {
  const auto is_lazy = [](const at::Tensor& plain) {
    return c10::impl::cow::is_cow_data_ptr(plain.storage().data_ptr());
  };
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    for (const Placements& placements : plain_layouts(mesh, 2)) {
      const at::Tensor x = spread(waves({4, 6}), mesh, placements),
                       same = redistribute(x, layout::str(mesh, placements)), copy = at::_lazy_clone(x);
      EXPECT_FALSE(is_lazy(full_tensor(x)) || is_lazy(full_tensor(redistribute(x, "{a: R}"))));
      for (const at::Tensor& each : {x, same, copy}) {
        EXPECT_FALSE(is_lazy(to_local(each))) << layout::str(mesh, placements);
      }
    }
  });
}

}  // namespace
}  // namespace tessera::ranks::operators_test
