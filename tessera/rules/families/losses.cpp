// Losses and their gradients. A mean divides by what the whole batch counts, so that the ranks' terms add up.
#include "tessera/rules/families/families.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/where.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

bool is_reduced(const Call& call) { return call.integer("reduction") != at::Reduction::None; }
bool is_mean(StackArgs& args) { return args["reduction"].toInt() == at::Reduction::Mean; }

// Operands broadcast; the result has an element for each.
FactorMap broadcast_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  TensorFactors result;
  for (size_t f = 0; f < map.factors.size(); ++f) {
    result.push_back({static_cast<int>(f)});
  }
  map.outputs = {std::move(result)};
  return map;
}

FactorMap pointwise_map(const Call& call) {
  FactorMap map = broadcast_map(call);
  if (is_reduced(call)) {
    map.outputs[0].clear();
  }
  return map;
}

FactorMap pointwise_backward_map(const Call& call) {
  FactorMap map = broadcast_map(call);
  map.dtypes = {call.spec(call.operand_of("self"))->dtype};
  return map;
}

// The share of the whole that is here, and whether it is all of it.
struct Share {
  int64_t here = 0;
  int64_t whole = 0;
  bool is_all() const { return here == whole; }
  double value() const { return static_cast<double>(here) / static_cast<double>(whole); }
};

// Of the elements that operands [begin, end) have when they broadcast.
Share share_of(const LocalCall& call, size_t begin, size_t end) {
  std::vector<int64_t> here;
  std::vector<int64_t> whole;
  for (size_t i = begin; i < end; ++i) {
    std::vector<int64_t> sizes;
    for (const layout::Range& range : call.operand_ranges[i]) {
      sizes.push_back(range.size());
    }
    here = at::infer_size(here, sizes);
    whole = at::infer_size(whole, call.operands[i]->sizes);
  }
  return {c10::multiply_integers(here), c10::multiply_integers(whole)};
}

// A mean of the elements that are here weighs as much as they are of the whole.
void run_pointwise(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const bool of_mean = is_mean(args);
  args.run();
  const Share share = share_of(call, 0, call.operands.size());
  if (of_mean && !share.is_all()) {
    const at::Tensor mean = stack.back().toTensor();
    share.here == 0 ? mean.zero_() : mean.mul_(share.value());
  }
}

// The kernel divides by the elements of `self` that are here.
void run_pointwise_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const Share share = share_of(call, 1, 2);
  if (is_mean(args) && !share.is_all()) {
    args["grad_output"] = args.tensor("grad_output") * share.value();
  }
  args.run();
}

// [N, C, places...], or [C]: class scores of samples, of which the target names one class each.
struct ScoreFactors {
  TensorFactors scores;
  TensorFactors sample;  // without the classes
  DimFactors classes;
};

int64_t class_dim(int64_t ndim) { return ndim == 1 ? 0 : 1; }

ScoreFactors add_scores(FactorMap& map, const Call& call) {
  ScoreFactors result;
  result.scores = map.add_all(call.spec(call.operand_of("self"))->sizes);
  result.sample = result.scores;
  const auto at = result.sample.begin() + class_dim(static_cast<int64_t>(result.scores.size()));
  result.classes = *at;
  result.sample.erase(at);
  return result;
}

// The sum over samples and classes of what each rank finds among its classes.
FactorMap nll_map(const Call& call) {
  FactorMap map;
  const ScoreFactors factors = add_scores(map, call);
  map.set_operand(call, "self", factors.scores);
  map.set_operand(call, "target", factors.sample);
  map.set_operand(call, "weight", {factors.classes});
  map.outputs = {is_reduced(call) ? TensorFactors() : factors.sample, {}};
  for (Factor& factor : map.factors) {
    factor.can_shard = call.integer("reduction") != at::Reduction::Mean;
  }
  return map;
}

// A mean of parts is their sum over their total weight.
bool is_mean_of_parts(const Call& call) {
  return call.integer("reduction") == at::Reduction::Mean &&
         std::any_of(call.operands.begin(), call.operands.end(),
                     [](const Operand& operand) { return operand.spec->is_cut(); });
}

void decompose_nll_mean(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  args["reduction"] = static_cast<int64_t>(at::Reduction::Sum);
  args.run();
  const at::Tensor total_weight = stack.back().toTensor();
  stack[stack.size() - 2].toTensor().div_(total_weight);
}

FactorMap nll_backward_map(const Call& call) {
  FactorMap map;
  const ScoreFactors factors = add_scores(map, call);
  const bool has_scalar_grad = call.dim_of(call.operand_of("grad_output")) == 0;
  map.set_operand(call, "grad_output", has_scalar_grad ? TensorFactors() : factors.sample);
  map.set_operand(call, "self", factors.scores);
  map.set_operand(call, "target", factors.sample);
  map.set_operand(call, "weight", {factors.classes});
  map.set_operand(call, "total_weight", {});
  map.outputs = {factors.scores};
  map.dtypes = {call.spec(call.operand_of("self"))->dtype};
  if (call.integer("reduction") != at::Reduction::Mean) {
    map.like = call.operand_of("total_weight");  // nobody reads it
  }
  return map;
}

// Targets count from the first class that is here; those elsewhere are ignored.
void run_nll(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const size_t self = args.has("grad_output") ? 1 : 0;
  const int64_t dim = class_dim(call.operands[self]->ndim());
  const layout::Range here = call.operand_ranges[self][dim];
  const int64_t classes = call.operands[self]->sizes[dim];
  if (here.size() != classes) {
    const int64_t ignored = args["ignore_index"].toInt();
    const at::Tensor target = args.tensor("target").to(at::kLong);
    at::_assert_async(((target >= 0).logical_and_(target < classes)).logical_or_(target == ignored).all(),
                      c10::str("[nll_loss] a target is none of the ", classes, " classes"));
    const at::Tensor is_here = (target >= here.begin).logical_and_(target < here.end).logical_and_(target != ignored);
    args["target"] = at::where(is_here, target - here.begin, -1);
    args["ignore_index"] = -1;
  }
  args.run();
}

bool is_unreduced(const Call& call) { return call.integer("reduction") == 0 && call.operand_of("weight") < 0; }

}  // namespace

void add_loss_rules(RuleTable& table) {
  const auto pointwise = [](ShapeSource shape) {
    return Rule{.map = pointwise_map, .local = run_pointwise, .shape = shape, .caught = Caught::kLoss};
  };
  table.add_all({"aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits", "aten::huber_loss"},
                pointwise(ShapeSource::kFactors));
  table.add_all({"aten::smooth_l1_loss", "aten::soft_margin_loss"}, pointwise(ShapeSource::kMeta));
  table.add("aten::mse_loss", pointwise(ShapeSource::kMeta).in_exact({.decompose = exact::decompose_mse_loss}));
  const Rule backward = {
      .map = pointwise_backward_map, .local = run_pointwise_backward, .shape = ShapeSource::kFactors};
  table.add_all({"aten::binary_cross_entropy_backward", "aten::huber_loss_backward", "aten::smooth_l1_loss_backward",
                 "aten::soft_margin_loss_backward"},
                backward);
  Rule squares_backward = backward.in_exact({.decompose = exact::decompose_mse_loss_backward});
  squares_backward.step_loss = StepLoss::kSquaresBackward;
  table.add("aten::mse_loss_backward", squares_backward);
  const Rule scores = {.map = nll_map,
                       .local = run_nll,
                       .decompose = decompose_nll_mean,
                       .decompose_when = is_mean_of_parts,
                       .shape = ShapeSource::kFactors};
  Rule scores_of_step = scores.in_exact({.adds_zeros = true, .accepts = is_unreduced, .takes_narrow = exact::always});
  scores_of_step.step_loss = StepLoss::kScores;
  table.add("aten::nll_loss_forward", scores_of_step);
  table.add("aten::nll_loss2d_forward", scores);
  const Rule scores_backward = {.map = nll_backward_map, .local = run_nll, .shape = ShapeSource::kFactors};
  table.add("aten::nll_loss_backward", scores_backward.in_exact(exact::kAsIs));
  table.add("aten::nll_loss2d_backward", scores_backward);

  // Made of others, or computed whole: the mean is theirs.
  table.add_all({"aten::kl_div", "aten::multilabel_margin_loss", "aten::nll_loss", "aten::nll_loss_nd"},
                {.caught = Caught::kLoss});
  table.add("aten::cross_entropy_loss", {.caught = Caught::kCrossEntropy});
  table.add("aten::multi_margin_loss", {.special = Special::kWhole, .caught = Caught::kLoss});
  table.add_all({"aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward",
                 "aten::_ctc_loss_backward.Tensor", "aten::multi_margin_loss_backward",
                 "aten::multilabel_margin_loss_backward", "aten::multilabel_margin_loss_forward"},
                {.special = Special::kWhole});
  table.add("aten::ctc_loss.IntList", {.caught = Caught::kComposite});
  table.add("aten::ctc_loss.Tensor",
            {.caught = Caught::kComposite, .host_values = {"input_lengths", "target_lengths"}});
}

}  // namespace tessera::rules
