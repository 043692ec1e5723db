// Samples of products, reductions and normalisations.
#include <limits>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_layer_norm.h>

#include "tests/audit/samples.h"

namespace tessera::audit {

using Ints = std::vector<int64_t>;

void add_contraction_samples(Samples& samples) {
  for (const int64_t k : {6, 5}) {
    const at::Tensor x = reals({5, k});
    const at::Tensor w = reals({k, 4});
    samples.push_back(sample("aten::mm", {x, w}));
    samples.push_back(sample("aten::mm", {x, w.t().contiguous().t()}));
    samples.push_back(sample("aten::bmm", {reals({3, 5, k}), reals({3, k, 2})}));
    samples.push_back(sample("aten::mv", {x, reals({k})}));
    samples.push_back(sample("aten::dot", {reals({k}), reals({k})}));
    for (const Ints& bias : {Ints{4}, Ints{5, 4}, Ints{5, 1}, Ints{}}) {
      samples.push_back(sample("aten::addmm", {reals(bias), x, w}, {{"beta", 2}, {"alpha", 3}}));
    }
    samples.push_back(sample("aten::addmm_", {reals({5, 4}), x, w}));
    samples.push_back(sample("aten::mm.out", {x, w, reals({5, 4})}));
    samples.push_back(sample("aten::baddbmm", {reals({3, 5, 2}), reals({3, 5, k}), reals({3, k, 2})}));
    samples.push_back(sample("aten::addbmm", {reals({5, 2}), reals({3, 5, k}), reals({3, k, 2})}));
    samples.push_back(sample("aten::addmv", {reals({5}), x, reals({k})}));
    samples.push_back(sample("aten::addmv", {reals({1}), x, reals({k})}));
    samples.push_back(sample("aten::_cdist_forward", {reals({2, 5, k}), reals({2, 4, k})}, {{"p", 2.0}}));
    samples.push_back(sample("aten::_cdist_backward",
                             {reals({2, 5, 4}), reals({2, 5, k}), reals({2, 4, k}), reals({2, 5, 4})}, {{"p", 2.0}}));
    samples.push_back(sample("aten::_cdist_forward", {reals({5, k}), reals({3, 1, 4, k})}, {{"p", 2.0}}));
    samples.push_back(sample("aten::_euclidean_dist", {reals({2, 5, k}), reals({2, 4, k})}));
    samples.push_back(sample("aten::_euclidean_dist", {reals({5, k}), reals({3, 1, 4, k})}));
    samples.push_back(sample("aten::_cdist_backward",
                             {reals({3, 1, 5, 4}), reals({5, k}), reals({3, 1, 4, k}), reals({3, 1, 5, 4})},
                             {{"p", 2.0}}));
    samples.push_back(sample("aten::addr", {reals({5, 4}), reals({5}), reals({4})}));
  }
}

// In float32, of numbers whose products and sums are exact, and with rows of 16 or 32 bytes, as libtorch wants them.
void add_grouped_samples(Samples& samples) {
  const auto numbers = [](Ints sizes) { return integers(5, std::move(sizes)).to(at::kFloat); };
  const auto add = [&](Ints left, Ints right, const Ints& ends) {
    samples.push_back(
        sample("aten::_grouped_mm", {numbers(std::move(left)), numbers(std::move(right)), at::tensor(ends, at::kInt)}));
  };
  add({5, 4}, {3, 4, 8}, {2, 2, 5});
  add({5, 4}, {3, 4, 8}, {0, 3, 5});
  add({3, 5, 4}, {4, 8}, {4, 4, 8});
  add({5, 8}, {8, 4}, {4, 4, 8});
  samples.push_back(sample("aten::_grouped_mm", {numbers({3, 5, 4}), numbers({3, 4, 8})}));
}

void add_reduction_samples(Samples& samples) {
  samples.push_back(sample("aten::_amp_update_scale_",
                           {reals({}).to(at::kFloat), integers(3, {}).to(at::kInt), reals({}).to(at::kFloat)},
                           {{"scale_growth_factor", 2.0}, {"scale_backoff_factor", 0.5}, {"growth_interval", 3}}));
  const auto add = [&](const char* op, const at::Tensor& x, const rules::testing::Named& rest = {}) {
    samples.push_back(sample(op, {x}, rest));
  };
  for (const char* op :
       {"aten::sum", "aten::mean", "aten::nansum", "aten::prod", "aten::max", "aten::min", "aten::median",
        "aten::nanmedian", "aten::norm.Scalar", "aten::argmax", "aten::argmin", "aten::aminmax"}) {
    add(op, reals({5, 4}));
    add(op, reals({}));
  }
  add("aten::max", integers(90, {5, 4}));
  add("aten::min", bools({5, 4}));
  add("aten::any", bools({5, 4}));
  add("aten::all", bools({5, 4}));
  add("aten::count_nonzero", integers(3, {5, 4}));
  add("aten::_is_any_true", bools({5, 4}));
  add("aten::_is_all_true", bools({5, 4}));
  for (const Ints& dims : {Ints{0}, Ints{-1}, Ints{0, 2}, Ints{}}) {
    for (const bool keeps : {false, true}) {
      const rules::testing::Named rest = {{"dim", dims}, {"keepdim", keeps}};
      for (const char* op : {"aten::sum.dim_IntList", "aten::mean.dim", "aten::nansum", "aten::amax", "aten::amin",
                             "aten::linalg_vector_norm", "aten::var.correction", "aten::std.correction",
                             "aten::var_mean.correction", "aten::std_mean.correction"}) {
        add(op, reals({5, 4, 3}), rest);
      }
      if (!dims.empty()) {
        add("aten::logsumexp", reals({5, 4, 3}), rest);
      }
      add("aten::any.dims", bools({5, 4, 3}), rest);
      add("aten::all.dims", bools({5, 4, 3}), rest);
    }
    add("aten::count_nonzero.dim_IntList", integers(3, {5, 4, 3}), {{"dim", dims}});
  }
  for (const double p :
       {0.0, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    add("aten::linalg_vector_norm", reals({5, 4}), {{"ord", p}, {"dim", Ints{0}}});
    add("aten::norm.ScalarOpt_dim", reals({5, 4}), {{"p", p}, {"dim", Ints{0}}});
  }
  const c10::IValue two(2);
  add("aten::norm.ScalarOpt_dim_dtype", reals({5, 4}).to(at::kFloat),
      {{"p", two}, {"dim", Ints{0}}, {"keepdim", false}, {"dtype", at::kDouble}});
  add("aten::norm.ScalarOpt_dtype", reals({5, 4}).to(at::kFloat), {{"p", two}, {"dtype", at::kDouble}});
  add("aten::sum", integers(9, {5, 4}).to(at::kInt));
  add("aten::mean", integers(9, {5, 4}), {{"dtype", at::kDouble}});
  for (const int64_t dim : {0, -1}) {
    for (const char* op : {"aten::any.dim", "aten::all.dim"}) {
      add(op, bools({5, 4}), {{"dim", dim}});
    }
    for (const char* op : {"aten::prod.dim_int", "aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim",
                           "aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::cumsum", "aten::cumprod",
                           "aten::logcumsumexp", "aten::cummax", "aten::cummin", "aten::sort", "aten::aminmax"}) {
      add(op, reals({5, 4}), {{"dim", dim}});
    }
    add("aten::kthvalue", reals({5, 4}), {{"k", 2}, {"dim", dim}});
    add("aten::sort.stable", reals({5, 4}), {{"stable", true}, {"dim", dim}});
    add("aten::topk", reals({5, 4}), {{"k", 2}, {"dim", dim}});
  }
}

void add_norm_samples(Samples& samples) {
  using Named = rules::testing::Named;
  const at::Tensor x = reals({3, 5, 4});
  for (const int64_t dim : {0, -1}) {
    const at::Tensor soft = at::_softmax(x, dim, false);
    const at::Tensor log_soft = at::_log_softmax(x, dim, false);
    const Named forward = {{"dim", dim}, {"half_to_float", false}};
    const Named backward = {{"dim", dim}, {"input_dtype", at::kDouble}};
    samples.push_back(sample("aten::_softmax", {x}, forward));
    samples.push_back(sample("aten::_log_softmax", {x}, forward));
    samples.push_back(sample("aten::_safe_softmax", {x}, {{"dim", dim}}));
    samples.push_back(sample("aten::_softmax_backward_data", {reals({3, 5, 4}), soft}, backward));
    samples.push_back(sample("aten::_log_softmax_backward_data", {reals({3, 5, 4}), log_soft}, backward));
  }
  const at::Tensor weight = reals({4}), bias = reals({4});
  const Named shape = {{"normalized_shape", Ints{4}}, {"eps", 1e-5}};
  samples.push_back(sample("aten::native_layer_norm", {x, weight, bias}, shape));
  samples.push_back(sample("aten::native_layer_norm", {x}, shape));
  const auto [out, mean, rstd] = at::native_layer_norm(x, {4}, weight, bias, 1e-5);
  for (const std::vector<bool>& mask :
       {std::vector<bool>{true, true, true}, {true, false, false}, {true, true, false}}) {
    samples.push_back(
        sample("aten::native_layer_norm_backward", {reals({3, 5, 4}), x, mean, rstd, weight, bias},
               {{"normalized_shape", Ints{4}}, {"output_mask", c10::List<bool>({mask[0], mask[1], mask[2]})}}));
  }
  const at::Tensor image = reals({5, 4, 3});
  const Named group = {{"N", 5}, {"C", 4}, {"HxW", 3}, {"group", 2}, {"eps", 1e-5}};
  samples.push_back(sample("aten::native_group_norm", {image, weight, bias}, group));
  const auto [grouped, group_mean, group_rstd] = at::native_group_norm(image, weight, bias, 5, 4, 3, 2, 1e-5);
  samples.push_back(
      sample("aten::native_group_norm_backward", {reals({5, 4, 3}), image, group_mean, group_rstd, weight},
             {{"N", 5}, {"C", 4}, {"HxW", 3}, {"group", 2}, {"output_mask", c10::List<bool>({true, true, true})}}));
  const Named batch = {{"training", false}, {"momentum", 0.1}, {"eps", 1e-5}};
  samples.push_back(sample("aten::native_batch_norm", {image, weight, bias, reals({4}), reals({4})}, batch));
  samples.push_back(sample("aten::native_batch_norm_backward",
                           {reals({5, 4, 3}), image, weight, reals({4}), reals({4})},
                           {{"save_mean", c10::IValue()},
                            {"save_invstd", c10::IValue()},
                            {"train", false},
                            {"eps", 1e-5},
                            {"output_mask", c10::List<bool>({true, true, true})}}));
}

}  // namespace tessera::audit
