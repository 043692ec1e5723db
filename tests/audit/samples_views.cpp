// Samples of views, slices, factories and losses.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/nll_loss_forward.h>

#include "tests/audit/samples.h"

namespace tessera::audit {

using Ints = std::vector<int64_t>;
using rules::testing::Named;

namespace {

void add_regroupings(Samples& samples) {
  struct View {
    Ints from, to;
  };
  for (const View& view :
       {View{{4, 6}, {24}}, View{{24}, {4, 6}}, View{{4, 6}, {2, 2, 6}}, View{{5, 4, 6}, {20, 6}},
        View{{20, 6}, {5, 4, 6}}, View{{5, 6}, {5, 3, 2}}, View{{5, 3, 2}, {5, 6}}, View{{6, 4}, {4, 6}},
        View{{3, 4}, {2, 6}}, View{{3, 4, 5}, {2, 6, 5}}, View{{1, 4}, {4, 1}}, View{{1, 5}, {1, 1, 5}},
        View{{4}, {1, -1}}, View{{1}, {}}, View{{}, {1, 1}}, View{{0, 4}, {0}}, View{{6, 1, 4}, {3, 2, 4}}}) {
    for (const char* op : {"aten::view", "aten::_unsafe_view", "aten::view_copy"}) {
      samples.push_back(sample(op, {reals(view.from)}, {{"size", view.to}}));
    }
  }
  samples.push_back(
      sample("aten::_reshape_alias", {reals({5, 4, 6})}, {{"size", Ints{20, 6}}, {"stride", Ints{6, 1}}}));
  for (const char* op : {"aten::permute", "aten::permute_copy"}) {
    samples.push_back(sample(op, {reals({5, 4, 3})}, {{"dims", Ints{2, 0, -2}}}));
  }
  for (const char* op : {"aten::transpose.int", "aten::transpose_copy.int"}) {
    samples.push_back(sample(op, {reals({5, 4, 3})}, {{"dim0", 0}, {"dim1", -1}}));
  }
  for (const char* op : {"aten::t", "aten::t_copy"}) {
    samples.push_back(sample(op, {reals({5, 4})}));
    samples.push_back(sample(op, {reals({5})}));
    samples.push_back(sample(op, {reals({})}));
  }
  for (const char* op : {"aten::unsqueeze", "aten::unsqueeze_copy"}) {
    samples.push_back(sample(op, {reals({5, 4})}, {{"dim", 1}}));
    samples.push_back(sample(op, {reals({5, 4})}, {{"dim", -1}}));
  }
  for (const Ints& sizes : {Ints{5, 1, 4}, Ints{1, 4}, Ints{2, 1}, Ints{}}) {
    samples.push_back(sample("aten::squeeze", {reals(sizes)}));
    samples.push_back(sample("aten::squeeze.dim", {reals(sizes)}, {{"dim", 0}}));
    samples.push_back(sample("aten::squeeze.dims", {reals(sizes)}, {{"dim", sizes.empty() ? Ints{} : Ints{0, -1}}}));
    samples.push_back(sample("aten::squeeze_copy", {reals(sizes)}));
    samples.push_back(sample("aten::squeeze_copy.dim", {reals(sizes)}, {{"dim", 0}}));
    samples.push_back(
        sample("aten::squeeze_copy.dims", {reals(sizes)}, {{"dim", sizes.empty() ? Ints{} : Ints{0, -1}}}));
  }
  for (const char* op : {"aten::expand", "aten::expand_copy"}) {
    samples.push_back(sample(op, {reals({5, 1, 4})}, {{"size", Ints{3, 5, 6, 4}}}));
    samples.push_back(sample(op, {reals({5, 1})}, {{"size", Ints{-1, 3}}}));
  }
  samples.push_back(sample("aten::repeat", {reals({5, 4})}, {{"repeats", Ints{2, 1, 3}}}));
  for (const char* op : {"aten::as_strided", "aten::as_strided_copy"}) {
    samples.push_back(sample(op, {reals({5, 4})}, {{"size", Ints{5, 4}}, {"stride", Ints{4, 1}}}));
    samples.push_back(
        sample(op, {reals({5, 4})}, {{"size", Ints{3, 2}}, {"stride", Ints{1, 4}}, {"storage_offset", 2}}));
  }
  samples.push_back(sample("aten::as_strided_scatter", {reals({5, 4}), reals({3, 2})},
                           {{"size", Ints{3, 2}}, {"stride", Ints{1, 4}}, {"storage_offset", 2}}));
  for (const char* op : {"aten::view.dtype", "aten::view_copy.dtype"}) {
    samples.push_back(sample(op, {reals({5, 4})}, {{"dtype", at::kLong}}));
    samples.push_back(sample(op, {integers(9, {5, 4})}, {{"dtype", at::kInt}}));
  }
}

void add_slices(Samples& samples) {
  struct Cut {
    int64_t dim, start, end, step;
  };
  for (const Cut& cut : {Cut{0, 1, 4, 1}, Cut{1, 0, 1 << 30, 1}, Cut{-1, -2, 4, 1}, Cut{0, 0, 5, 2}, Cut{0, 3, 2, 1}}) {
    const Named rest = {{"dim", cut.dim}, {"start", cut.start}, {"end", cut.end}, {"step", cut.step}};
    Named backward = rest;
    backward.emplace_back("input_sizes", Ints{5, 4});
    for (const char* op : {"aten::slice.Tensor", "aten::slice_copy.Tensor"}) {
      samples.push_back(sample(op, {reals({5, 4})}, rest));
    }
    const at::Tensor part = run_whole("aten::slice.Tensor", samples.back().args)[0];
    samples.push_back(sample("aten::slice_backward", {reals(part.sizes())}, backward));
    samples.push_back(sample("aten::slice_scatter", {reals({5, 4}), reals(part.sizes())}, rest));
  }
  const Named at_one = {{"dim", 0}, {"index", 1}};
  samples.push_back(sample("aten::select.int", {reals({5, 4})}, at_one));
  samples.push_back(sample("aten::select_copy.int", {reals({5, 4})}, {{"dim", -1}, {"index", -1}}));
  samples.push_back(
      sample("aten::select_backward", {reals({4})}, {{"dim", 0}, {"index", 1}, {"input_sizes", Ints{5, 4}}}));
  samples.push_back(sample("aten::select_scatter", {reals({5, 4}), reals({4})}, at_one));
  for (const char* op : {"aten::split.Tensor", "aten::unsafe_split.Tensor"}) {
    samples.push_back(sample(op, {reals({5, 4})}, {{"split_size", 2}, {"dim", 0}}));
  }
  for (const char* op : {"aten::split_with_sizes", "aten::unsafe_split_with_sizes"}) {
    samples.push_back(sample(op, {reals({5, 6})}, {{"split_sizes", Ints{3, 1, 2}}, {"dim", -1}}));
  }
  samples.push_back(sample("aten::split_copy.Tensor", {reals({5, 4})}, {{"split_size", 2}, {"dim", 0}}));
  samples.push_back(
      sample("aten::split_with_sizes_copy", {reals({5, 6})}, {{"split_sizes", Ints{3, 1, 2}}, {"dim", -1}}));
  samples.push_back(sample("aten::unbind_copy.int", {reals({5, 3, 4})}, {{"dim", 1}}));
  samples.push_back(sample("aten::unbind.int", {reals({3, 5})}, {{"dim", 0}}));
  samples.push_back(sample("aten::unbind.int", {reals({5, 3, 4})}, {{"dim", 1}}));
  const Named diagonal = {{"offset", 1}, {"dim1", 0}, {"dim2", 2}};
  samples.push_back(sample("aten::diagonal", {reals({4, 5, 3})}, diagonal));
  samples.push_back(sample("aten::diagonal_copy", {reals({4, 5, 3})}, diagonal));
  samples.push_back(sample("aten::diagonal_scatter", {reals({4, 5, 3}), reals({5, 2})}, diagonal));
  Named diagonal_backward = diagonal;
  diagonal_backward.emplace_back("input_sizes", Ints{4, 5, 3});
  samples.push_back(sample("aten::diagonal_backward", {reals({5, 2})}, diagonal_backward));
  for (const char* op : {"aten::unfold", "aten::unfold_copy"}) {
    samples.push_back(sample(op, {reals({5, 6})}, {{"dimension", 1}, {"size", 3}, {"step", 2}}));
  }
  samples.push_back(sample("aten::unfold_backward", {reals({5, 2, 3})},
                           {{"input_sizes", Ints{5, 6}}, {"dim", 1}, {"size", 3}, {"step", 2}}));
  samples.push_back(sample("aten::constant_pad_nd", {reals({5, 4})}, {{"pad", Ints{1, 2}}, {"value", 0.5}}));
  samples.push_back(sample("aten::constant_pad_nd", {reals({5, 4})}, {{"pad", Ints{0, 0, -1, 2}}, {"value", 0}}));
  samples.push_back(sample("aten::flip", {reals({5, 4})}, {{"dims", Ints{-1}}}));
  samples.push_back(sample("aten::flip", {reals({5, 4})}, {{"dims", Ints{}}}));
  samples.push_back(sample("aten::roll", {reals({5, 4})}, {{"shifts", Ints{2}}, {"dims", Ints{0}}}));
  samples.push_back(sample("aten::roll", {reals({5, 4})}, {{"shifts", Ints{2}}}));
  for (const char* op : {"aten::tril", "aten::triu"}) {
    for (const int64_t diagonal_of : {-1, 0, 2}) {
      samples.push_back(sample(op, {reals({3, 5, 6})}, {{"diagonal", diagonal_of}}));
    }
  }
}

}  // namespace

void add_view_samples(Samples& samples) {
  add_regroupings(samples);
  add_slices(samples);
}

void add_factory_samples(Samples& samples) {
  const at::Tensor x = reals({5, 4});
  for (const char* op : {"aten::empty_like", "aten::ones_like", "aten::zeros_like"}) {
    samples.push_back(sample(op, {x}, {}, std::string(op) == "aten::empty_like" ? Compare::kShapes : Compare::kValues));
  }
  samples.push_back(sample("aten::full_like", {x}, {{"fill_value", 2.5}}));
  for (const Ints& sizes : {Ints{5, 4}, Ints{3, 2, 2}, Ints{}}) {
    samples.push_back(sample("aten::new_empty", {x}, {{"size", sizes}}, Compare::kShapes));
    samples.push_back(sample("aten::new_ones", {x}, {{"size", sizes}}));
    samples.push_back(sample("aten::new_zeros", {x}, {{"size", sizes}}));
    samples.push_back(sample("aten::new_full", {x}, {{"size", sizes}, {"fill_value", 1.5}}));
  }
  samples.push_back(
      sample("aten::new_empty_strided", {x}, {{"size", Ints{5, 4}}, {"stride", Ints{1, 5}}}, Compare::kShapes));
  samples.push_back(sample("aten::fill_.Scalar", {x}, {{"value", 3}}));
  samples.push_back(sample("aten::zero_", {x}));
  samples.push_back(sample("aten::copy_", {x, reals({4})}));
  samples.push_back(sample("aten::copy_", {x, reals({5, 4})}));
  samples.push_back(sample("aten::copy_", {x, integers(5, {5, 4})}));
  samples.push_back(sample("aten::add_.Tensor", {x, reals({4})}));
  samples.push_back(sample("aten::mul_.Tensor", {x, reals({})}));
  samples.push_back(sample("aten::addcdiv_", {x, reals({5, 4}), reals({5, 4})}));
  samples.push_back(sample("aten::lerp_.Scalar", {x, reals({5, 4})}, {{"weight", 0.3}}));
  samples.push_back(sample("aten::add.out", {x, reals({4}), reals({5, 4})}));
  samples.push_back(sample("aten::_to_copy", {x}, {{"dtype", at::kFloat}}));
  samples.push_back(sample("aten::_to_copy", {integers(9, {5, 4})}, {{"dtype", at::kDouble}}));
  samples.push_back(sample("aten::masked_fill.Scalar", {x, bools({5, 4})}, {{"value", 0}}));
  samples.push_back(sample("aten::masked_fill.Scalar", {x, bools({4})}, {{"value", -1.5}}));
  samples.push_back(sample("aten::clamp", {x}, {{"min", 0.2}, {"max", 0.7}}));
  samples.push_back(sample("aten::log_sigmoid_backward", {reals({5, 4}), x, reals({5, 4})}));
  for (const bool training : {false, true}) {
    samples.push_back(sample("aten::rrelu_with_noise_backward", {reals({5, 4}), x - 0.5, reals({5, 4})},
                             {{"lower", 0.1}, {"upper", 0.3}, {"training", training}, {"self_is_result", false}}));
  }
  samples.push_back(sample("aten::where.self", {bools({5, 1}), integers(5, {4}), reals({})}));
  samples.push_back(sample("aten::glu", {reals({5, 4})}, {{"dim", -1}}));
  samples.push_back(sample("aten::glu_backward", {reals({5, 2}), reals({5, 4})}, {{"dim", -1}}));
}

void add_loss_samples(Samples& samples) {
  const at::Tensor x = reals({5, 4}), y = reals({5, 4});
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    const bool is_each = reduction == at::Reduction::None;
    const at::Tensor grad = is_each ? reals({5, 4}) : reals({});
    const Named rest = {{"reduction", reduction}};
    const auto extended = [&](const char* name, double value) {
      Named named = rest;
      named.emplace_back(name, value);
      return named;
    };
    for (const char* op : {"aten::mse_loss", "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits",
                           "aten::soft_margin_loss"}) {
      samples.push_back(sample(op, {x, y}, rest));
    }
    samples.push_back(sample("aten::smooth_l1_loss", {x, y}, extended("beta", 0.3)));
    samples.push_back(sample("aten::huber_loss", {x, y}, extended("delta", 0.3)));
    for (const char* op :
         {"aten::mse_loss_backward", "aten::binary_cross_entropy_backward", "aten::soft_margin_loss_backward"}) {
      samples.push_back(sample(op, {grad, x, y}, rest));
    }
    samples.push_back(sample("aten::smooth_l1_loss_backward", {grad, x, y}, extended("beta", 0.3)));
    samples.push_back(sample("aten::huber_loss_backward", {grad, x, y}, extended("delta", 0.3)));
    Named nll = rest;
    nll.emplace_back("ignore_index", 2);
    for (const Ints& places : {Ints{}, Ints{3, 2}}) {
      Ints scores = {5, 4}, targets = {5};
      scores.insert(scores.end(), places.begin(), places.end());
      targets.insert(targets.end(), places.begin(), places.end());
      const std::string op = places.empty() ? "aten::nll_loss" : "aten::nll_loss2d";
      const at::Tensor score = reals(scores), target = integers(4, targets);
      for (const at::Tensor& weight : {at::Tensor(), reals({4})}) {
        Named named = nll;
        named.emplace_back("weight", weight.defined() ? c10::IValue(weight) : c10::IValue());
        samples.push_back(sample(op + "_forward", {score, target}, named));
        const std::vector<at::Tensor> results = run_whole(op + "_forward", samples.back().args);
        samples.push_back(
            sample(op + "_backward", {is_each ? reals(targets) : reals({}), score, target, results[1]}, named));
      }
    }
  }
}

}  // namespace tessera::audit
