// Convolutions of any number of dims: samples and channels may be cut, places stay whole.
#include "tessera/rules/families/families.h"

#include <ATen/ops/zeros.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

// A list of one number holds for every dim.
int64_t along(const std::vector<int64_t>& list, size_t dim) { return list.size() == 1 ? list[0] : list.at(dim); }

// The places of the result along each dim.
std::vector<int64_t> result_places(const Call& call, c10::IntArrayRef input, c10::IntArrayRef weight) {
  const auto stride = call.ints("stride"), padding = call.ints("padding"), dilation = call.ints("dilation"),
             extra = call.ints("output_padding");
  std::vector<int64_t> places;
  for (size_t d = 0; d + 2 < input.size(); ++d) {
    const int64_t reach = along(dilation, d) * (weight[d + 2] - 1), size = input[d + 2];
    places.push_back(call.flag("transposed")
                         ? (size - 1) * along(stride, d) - 2 * along(padding, d) + reach + along(extra, d) + 1
                         : (size + 2 * along(padding, d) - reach - 1) / along(stride, d) + 1);
  }
  return places;
}

// The factors of a convolution. Channels of several groups are (group, channel within it): then groups may be cut,
// channels not.
struct Convolution {
  TensorFactors input, weight, bias, result;

  Convolution(FactorMap& map, const Call& call, c10::IntArrayRef input_sizes, c10::IntArrayRef weight_sizes,
              c10::IntArrayRef places) {
    const bool transposed = call.flag("transposed");
    const int64_t groups = call.integer("groups");
    const bool is_grouped = groups > 1;
    const DimFactors group = is_grouped ? DimFactors{map.add(groups)} : DimFactors();
    const int in = map.add(input_sizes[1] / groups, !is_grouped);
    const int out = map.add(transposed ? weight_sizes[1] : weight_sizes[0] / groups, !is_grouped);
    const auto of_groups = [&](int channel) {
      DimFactors dim = group;
      dim.push_back(channel);
      return dim;
    };
    const DimFactors sample = {map.add(input_sizes[0])};
    input = {sample, of_groups(in)};
    bias = {of_groups(out)};
    result = {sample, of_groups(out)};
    weight = {of_groups(transposed ? in : out), {transposed ? out : in}};
    const auto add_whole = [&](TensorFactors& tensor, int64_t size) { tensor.push_back({map.add(size, false)}); };
    for (size_t d = 2; d < input_sizes.size(); ++d) {
      add_whole(input, input_sizes[d]);
      add_whole(weight, weight_sizes[d]);
      add_whole(result, places[d - 2]);
    }
  }
};

// Channels that are summed may be cut: see run_convolution for the bias.
FactorMap convolution_map(const Call& call) {
  FactorMap map;
  const auto &input = call.spec(0)->sizes, &weight = call.spec(1)->sizes;
  const Convolution factors(map, call, input, weight, result_places(call, input, weight));
  map.partial = call.operands.size() == 2 ? PartialFlow::kLinear : PartialFlow::kMerge;
  map.operands = {factors.input, factors.weight};
  map.set_operand(call, "bias", factors.bias);
  map.outputs = {factors.result};
  return map;
}

FactorMap convolution_backward_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const auto& grad = call.spec(0)->sizes;
  const Convolution factors(map, call, call.spec(1)->sizes, call.spec(2)->sizes, c10::IntArrayRef(grad).slice(2));
  map.operands = {factors.result, factors.input, factors.weight};
  map.outputs = {factors.input, factors.weight, factors.bias};
  map.dtypes = {call.spec(1)->dtype, call.spec(2)->dtype, call.spec(0)->dtype};
  if (!call.arg("bias_sizes").isNone()) {
    map.sizes = {{.arg = call.arg_index("bias_sizes"), .output = 2}};
  }
  return map;
}

FactorMap convolution_weight_map(const Call& call) {
  FactorMap map;
  const auto &grad = call.spec(0)->sizes, &input = call.spec(1)->sizes, weight = call.ints("weight_sizes");
  const Convolution factors(map, call, input, weight, c10::IntArrayRef(grad).slice(2));
  map.operands = {factors.result, factors.input};
  map.outputs = {factors.weight};
  map.sizes = {{.arg = call.arg_index("weight_sizes"), .output = 0}};
  return map;
}

// libtorch's kernels refuse a convolution without samples or channels.
bool holds_nothing(const at::Tensor& input, const at::Tensor& weight) {
  return input.numel() == 0 || weight.numel() == 0;
}

// Which operand is the input of the convolution.
constexpr size_t kInputOfBackward = 1;

// The groups that are here.
void set_groups(const LocalCall& call, StackArgs& args, size_t input) {
  const int64_t groups = args["groups"].toInt();
  if (groups > 1) {
    args["groups"] = groups * call.operand_ranges[input][1].size() / call.operands[input]->sizes[1];
  }
}

// Of the ranks that share the sum over the input's channels, the one that holds the first does what is done once.
bool is_later(const LocalCall& call, StackArgs& args, size_t input) {
  return args["groups"].toInt() == 1 && call.operand_ranges[input][1].begin != 0;
}

void run_convolution(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor input = args.tensor("input");
  if (holds_nothing(input, args.tensor("weight"))) {
    args.give_value(at::zeros(sizes_of(call.output_ranges[0]), input.options()));
    return;
  }
  if (is_later(call, args, 0)) {
    args["bias"] = c10::IValue();
  }
  set_groups(call, args, 0);
  args.run();
}

void run_convolution_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const bool adds_bias = !is_later(call, args, kInputOfBackward);
  const at::Tensor grad = args.tensor("grad_output"), input = args.tensor("input"), weight = args.tensor("weight");
  const std::vector<bool> asked = args["output_mask"].toBoolList().vec();
  const auto zeros = [&](size_t i) {
    return asked.at(i) ? at::zeros(sizes_of(call.output_ranges[i]), grad.options().dtype(call.outputs[i]->dtype))
                       : at::Tensor();
  };
  if (grad.numel() == 0 || holds_nothing(input, weight)) {
    at::Tensor of_bias = zeros(2);
    if (asked.at(2) && adds_bias && grad.numel() != 0) {
      of_bias = grad.transpose(0, 1).flatten(1).sum(1);
    }
    args.give(zeros(0), zeros(1), of_bias);
    return;
  }
  set_groups(call, args, kInputOfBackward);
  args.run();
  if (asked.at(2) && !adds_bias) {
    stack.back() = zeros(2);
  }
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  table.add("aten::convolution", {.map = convolution_map,
                                  .local = run_convolution,
                                  .shape = ShapeSource::kFactors,
                                  .exact = {{.local = exact::run_convolution, .keeps_whole = true}}});
  table.add("aten::convolution_backward", {.map = convolution_backward_map,
                                           .local = run_convolution_backward,
                                           .shape = ShapeSource::kFactors,
                                           .exact = {{.decompose = exact::decompose_convolution_backward}}});
  table.add_optional("tessera::convolution_weight", {.map = convolution_weight_map,
                                                     .local = exact::run_convolution_weight,
                                                     .shape = ShapeSource::kFactors,
                                                     .exact = {{.local = exact::run_convolution_weight,
                                                                .sample = exact::convolution_weight_sample,
                                                                .keeps_whole = true}}});
}

}  // namespace tessera::rules
