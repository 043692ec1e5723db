// Softmax and normalisation.
#include "tessera/rules/families/families.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sum.h>

#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

// Every operand and output has the same dims; `dim` stays whole.
FactorMap softmax_map(const Call& call) {
  FactorMap map;
  const TensorFactors tensor = map.add_all(call.spec(0)->sizes);
  if (!tensor.empty()) {
    map.block(tensor[wrap_dim(call.integer("dim"), call.dim_of(0))]);
  }
  map.operands.assign(call.operands.size(), tensor);
  map.outputs = {tensor};
  if (call.has_arg("dtype") && !call.arg("dtype").isNone()) {
    map.dtypes = {call.arg("dtype").toScalarType()};
  }
  return map;
}

bool softmax_is_cut(const Call& call) {
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(0));
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [&](const Operand& operand) { return operand.spec->is_cut(dim); });
}

// `dim` is cut below: maximum and sum are small and merged, the elements stay where they are.

at::Tensor less_maximum(const at::Tensor& x, int64_t dim) { return x - at::amax(x, dim, /*keepdim=*/true); }

c10::ScalarType softmax_dtype(StackArgs& args) {
  return args["half_to_float"].toBool() ? c10::kFloat : args.tensor("self").scalar_type();
}

void decompose_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const int64_t dim = args["dim"].toInt();
  const at::Tensor e = at::exp(less_maximum(widened(args.tensor("self")), dim));
  args.give_value((e / at::sum(e, dim, /*keepdim=*/true)).to(softmax_dtype(args)));
}

void decompose_log_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const int64_t dim = args["dim"].toInt();
  const at::Tensor shifted = less_maximum(widened(args.tensor("self")), dim);
  const at::Tensor total = at::sum(at::exp(shifted), dim, /*keepdim=*/true);
  args.give_value((shifted - at::log(total)).to(softmax_dtype(args)));
}

// A row of nothing but -inf is zero instead of NaN.
void decompose_safe_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const int64_t dim = args["dim"].toInt();
  const at::Tensor self = args.tensor("self");
  const at::Tensor x = args["dtype"].isNone() ? self : self.to(args["dtype"].toScalarType());
  const at::Tensor wide = widened(x);
  const at::Tensor largest = at::amax(wide, dim, /*keepdim=*/true);
  const at::Tensor is_nothing = largest == -std::numeric_limits<double>::infinity();
  const at::Tensor e = at::exp(wide - largest.masked_fill(is_nothing, 0));
  const at::Tensor total = at::sum(e, dim, /*keepdim=*/true).masked_fill(is_nothing, 1);
  args.give_value((e / total).to(x.scalar_type()));
}

void decompose_softmax_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor output = widened(args.tensor("output"));
  const at::Tensor weighted = widened(args.tensor("grad_output")) * output;
  const at::Tensor grad = weighted - output * at::sum(weighted, args["dim"].toInt(), /*keepdim=*/true);
  args.give_value(grad.to(args["input_dtype"].toScalarType()));
}

void decompose_log_softmax_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor grad_output = widened(args.tensor("grad_output"));
  const at::Tensor total = at::sum(grad_output, args["dim"].toInt(), /*keepdim=*/true);
  const at::Tensor grad = grad_output - at::exp(widened(args.tensor("output"))) * total;
  args.give_value(grad.to(args["input_dtype"].toScalarType()));
}

// Three results: one like the input, and two that are like the weight in their dtype (statistics, gradients; of these,
// one that output_mask declines stays undefined, whatever its factors).
void set_results(FactorMap& map, const Call& call, const TensorFactors& input, const TensorFactors& others) {
  const int weight = call.operand_of("weight");
  const c10::ScalarType own = call.spec(call.operand_of("input"))->dtype;
  const c10::ScalarType other = weight < 0 ? own : call.spec(weight)->dtype;
  map.outputs = {input, others, others};
  map.dtypes = {own, other, other};
}

// [rows..., normalised...]: rows may be cut, the normalised dims stay whole.
struct RowFactors {
  TensorFactors input;
  TensorFactors row;         // [rows..., 1...]: statistics
  TensorFactors normalised;  // weights
};

RowFactors add_rows(FactorMap& map, const Call& call) {
  const auto& sizes = call.spec(call.operand_of("input"))->sizes;
  const size_t rows = sizes.size() - call.ints("normalized_shape").size();
  RowFactors result;
  result.input = map.add_all(sizes);
  result.row = result.input;
  for (size_t d = rows; d < sizes.size(); ++d) {
    map.block(result.input[d]);
    result.row[d].clear();
    result.normalised.push_back(result.input[d]);
  }
  return result;
}

FactorMap row_norm_map(const Call& call) {
  FactorMap map;
  const RowFactors factors = add_rows(map, call);
  map.set_operand(call, "input", factors.input);
  map.set_operand(call, "weight", factors.normalised);
  map.set_operand(call, "bias", factors.normalised);
  set_results(map, call, factors.input, factors.row);
  return map;
}

FactorMap row_norm_backward_map(const Call& call) {
  FactorMap map;
  const RowFactors factors = add_rows(map, call);
  map.set_operand(call, "grad_out", factors.input);
  map.set_operand(call, "input", factors.input);
  map.set_operand(call, "mean", factors.row);
  map.set_operand(call, "rstd", factors.row);
  map.set_operand(call, "weight", factors.normalised);
  map.set_operand(call, "bias", factors.normalised);
  set_results(map, call, factors.input, factors.normalised);
  return map;
}

// Samples may be cut; what a group is made of stays whole.
FactorMap group_norm_map(const Call& call) {
  FactorMap map;
  const TensorFactors input = map.add_all(call.spec(call.operand_of("input"))->sizes);
  for (size_t d = 1; d < input.size(); ++d) {
    map.block(input[d]);
  }
  const TensorFactors channel = {input.at(1)};
  const TensorFactors statistics = {input[0], {map.add(call.integer("group"), false)}};
  map.set_operand(call, "grad_out", input);
  map.set_operand(call, "input", input);
  map.set_operand(call, "mean", statistics);
  map.set_operand(call, "rstd", statistics);
  map.set_operand(call, "weight", channel);
  map.set_operand(call, "bias", channel);
  set_results(map, call, input, call.has_arg("output_mask") ? channel : statistics);
  return map;
}

// N counts the samples of the input that is here.
void run_group_norm(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args["N"] = args.tensor("input").size(0);
  args.run();
}

// v scaled to norms g, which have the dims of v: one norm for each index of `dim`, which may be cut.
FactorMap weight_norm_map(const Call& call) {
  FactorMap map;
  const bool is_backward = call.has_arg("grad_w");
  const TensorFactors v = map.add_all(call.spec(is_backward ? 1 : 0)->sizes);
  TensorFactors g(v.size());
  for (size_t d = 0; d < v.size(); ++d) {
    static_cast<int64_t>(d) == call.integer("dim") ? (void)(g[d] = v[d]) : map.block(v[d]);
  }
  map.operands = is_backward ? std::vector<TensorFactors>{v, v, g, g} : std::vector<TensorFactors>{v, g};
  map.outputs = {v, g};
  return map;
}

// libtorch's kernels divide by the number of norms.
void run_weight_norm(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const bool is_backward = args.has("grad_w");
  const at::Tensor v = args.tensor(is_backward ? "saved_v" : "v"), g = args.tensor(is_backward ? "saved_g" : "g");
  if (v.numel() == 0) {
    args.give(at::empty_like(v), at::empty_like(g));
    return;
  }
  args.close_gaps();
  args.run();
}

// The statistics of rows that are cut for this call.
void run_row_norm_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args.close_gaps();
  args.run();
}

}  // namespace

void add_norm_rules(RuleTable& table) {
  const auto softmax = [](Decomposition decompose, const ExactRule& exact) {
    return Rule{.map = softmax_map, .decompose = decompose, .decompose_when = softmax_is_cut, .exact = exact};
  };
  table.add("aten::_softmax", softmax(decompose_softmax, {.local = exact::run_softmax}));
  table.add("aten::_log_softmax",
            softmax(decompose_log_softmax, {.decompose = decompose_log_softmax, .takes_narrow = exact::always}));
  table.add("aten::_safe_softmax",
            {.map = softmax_map,
             .decompose = decompose_safe_softmax,
             .decompose_when = softmax_is_cut,
             .shape = ShapeSource::kFactors,
             .exact = {{.decompose = exact::decompose_safe_softmax, .takes_narrow = exact::always}}});
  table.add("aten::_softmax_backward_data",
            softmax(decompose_softmax_backward, {.local = exact::run_softmax_backward}));
  table.add("aten::_log_softmax_backward_data",
            softmax(decompose_log_softmax_backward,
                    {.decompose = decompose_log_softmax_backward, .takes_narrow = exact::always}));
  table.add("aten::native_layer_norm",
            {.map = row_norm_map, .shape = ShapeSource::kFactors, .exact = {{.local = exact::run_layer_norm}}});
  table.add("aten::native_layer_norm_backward",
            {.map = row_norm_backward_map,
             .local = run_row_norm_backward,
             .takes_interleaved = true,
             .shape = ShapeSource::kFactors,
             .exact = {{.decompose = exact::decompose_layer_norm_backward, .takes_narrow = exact::always}}});
  table.add_all({"aten::native_group_norm", "aten::native_group_norm_backward"},
                {.map = group_norm_map, .local = run_group_norm, .shape = ShapeSource::kFactors});
  table.add_all({"aten::_weight_norm_interface", "aten::_weight_norm_interface_backward"},
                {.map = weight_norm_map, .local = run_weight_norm, .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
