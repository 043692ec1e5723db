// Normalisation by statistics of the whole batch.
#include "tessera/rules/families/families.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

bool trains(const Call& call) { return call.flag(call.has_arg("train") ? "train" : "training"); }

// Training takes statistics of the whole batch and writes the running ones, though the schema does not say so: a batch
// that is cut, and running ones that are not replicated, decompose, others are whole. Evaluation only reads them:
// samples, channels and places may be cut.
FactorMap batch_norm_map(const Call& call) {
  FactorMap map;
  const TensorFactors input = map.add_all(call.spec(call.operand_of("input"))->sizes);
  for (const DimFactors& dim : input) {
    if (trains(call)) {
      map.block(dim);
    }
  }
  const TensorFactors channel = {input.at(1)};
  const TensorFactors saved = trains(call) ? channel : TensorFactors{{map.add(0, false)}};
  map.set_operand(call, "grad_out", input);
  map.set_operand(call, "input", input);
  map.set_operand(call, "save_mean", saved);
  map.set_operand(call, "save_invstd", saved);
  for (const char* arg : {"weight", "bias", "running_mean", "running_var"}) {
    map.set_operand(call, arg, channel);
  }
  const int weight = call.operand_of("weight");
  const c10::ScalarType own = call.spec(call.operand_of("input"))->dtype;
  const c10::ScalarType other = weight < 0 ? own : call.spec(weight)->dtype;
  const TensorFactors& others = call.has_arg("output_mask") ? channel : saved;
  map.outputs = {input, others, others};
  map.dtypes = {own, other, other};
  return map;
}

// Evaluation saves nothing, on every device.
void run_batch_norm(const LocalCall& call, torch::jit::Stack& stack) {
  const bool trains = StackArgs(*call.op, stack)["training"].toBool();
  call.op->callBoxed(stack);
  for (size_t i = stack.size() - 2; i < stack.size() && !trains; ++i) {
    stack[i] = stack[i].toTensor().new_empty({0});
  }
}

// libtorch's kernel divides by the size of the input.
void run_batch_norm_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor input = args.tensor("input");
  if (input.numel() != 0) {
    args.run();
    return;
  }
  const std::vector<bool> asked = args["output_mask"].toBoolList().vec();
  const auto nothing = [&](size_t i) {
    return asked.at(i) ? input.new_zeros(i == 0 ? input.sizes() : input.sizes().slice(1, 1), call.outputs[i]->dtype)
                       : at::Tensor();
  };
  args.give(nothing(0), nothing(1), nothing(2));
}

bool is_cut(const Call& call, const char* arg) {
  const int operand = call.has_arg(arg) ? call.operand_of(arg) : -1;
  return operand >= 0 && call.spec(operand)->is_cut();
}

// Running statistics that are plain tensors are written whole on every rank.
bool keeps_plain_statistics(const Call& call) {
  const int operand = call.has_arg("running_mean") ? call.operand_of("running_mean") : -1;
  return operand >= 0 && call.operands.at(static_cast<size_t>(operand)).is_plain;
}

bool is_spread(const Call& call, const char* arg) {
  const int operand = call.operand_of(arg);
  return operand >= 0 && !call.spec(operand)->is_replicated;
}

bool trains_on_cut_batch(const Call& call) {
  if (!trains(call)) {
    return false;
  }
  if (call.has_arg("output_mask")) {
    return is_cut(call, "input") || is_cut(call, "grad_out");
  }
  return is_spread(call, "running_mean") || is_spread(call, "running_var") ||
         (is_cut(call, "input") && !keeps_plain_statistics(call));
}

// Sums over all but the channels, which each rank has a part of: what is added up is as small as a channel vector.
struct Channels {
  std::vector<int64_t> others;  // all dims but that of the channels
  std::vector<int64_t> shape;   // [1, channels, 1...]
  double count = 1;             // elements of a channel

  explicit Channels(const at::Tensor& input) : shape(input.dim(), 1) {
    shape.at(1) = input.size(1);
    for (int64_t d = 0; d < input.dim(); ++d) {
      if (d != 1) {
        others.push_back(d);
        count *= static_cast<double>(input.size(d));
      }
    }
  }

  at::Tensor sum(const at::Tensor& x) const { return at::sum(x, others, /*keepdim=*/true); }
  at::Tensor spread(const at::Tensor& channel) const { return channel.view(shape); }
  at::Tensor flat(const at::Tensor& sums, c10::ScalarType dtype) const { return sums.view({shape[1]}).to(dtype); }
};

// running = (1 - momentum) running + momentum value
void update_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) {
    running.mul_(1 - momentum).add_(value.to(running.scalar_type()), momentum);
  }
}

c10::ScalarType statistics_dtype(StackArgs& args) {
  const at::Tensor weight = args.tensor("weight");
  return weight.defined() ? weight.scalar_type() : args.tensor("input").scalar_type();
}

// What the input is normalised by: [1, channels, 1...].
struct Statistics {
  at::Tensor mean, inverse;
};

Statistics running_statistics(StackArgs& args, const Channels& channels) {
  return {channels.spread(args.tensor("running_mean")),
          channels.spread(at::rsqrt(widened(args.tensor("running_var")) + args["eps"].toDouble()))};
}

// Those of the batch, which the running ones follow. Each sum is merged by the first operator that reads it (the
// subtraction, the addition of eps), before the others.
Statistics batch_statistics(StackArgs& args, const Channels& channels, const at::Tensor& x) {
  const double momentum = args["momentum"].toDouble(), unbiased = channels.count / (channels.count - 1);
  const at::Tensor mean = channels.sum(x).div(channels.count), centred = x - mean;
  const at::Tensor variance = channels.sum(centred * centred).div(channels.count);
  update_running(args.tensor("running_mean"), channels.flat(mean, mean.scalar_type()), momentum);
  update_running(args.tensor("running_var"), channels.flat(variance * unbiased, mean.scalar_type()), momentum);
  return {mean, at::rsqrt(variance + args["eps"].toDouble())};
}

void decompose_batch_norm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight"), bias = args.tensor("bias");
  const bool trains = args["training"].toBool();
  const Channels channels(input);
  const c10::ScalarType kept = statistics_dtype(args);
  const at::Tensor x = widened(input);
  const Statistics statistics = trains ? batch_statistics(args, channels, x) : running_statistics(args, channels);
  at::Tensor y = (x - statistics.mean) * statistics.inverse;
  if (weight.defined()) {
    y = y * channels.spread(weight);
  }
  if (bias.defined()) {
    y = y + channels.spread(bias);
  }
  const auto saved = [&](const at::Tensor& statistic) {
    return trains ? channels.flat(statistic, kept) : input.new_empty({0}, kept);
  };
  args.give(y.to(input.scalar_type()), saved(statistics.mean), saved(statistics.inverse));
}

void decompose_batch_norm_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  const Channels channels(input);
  const c10::ScalarType kept = statistics_dtype(args);
  const std::vector<bool> asked = args["output_mask"].toBoolList().vec();
  const bool trains = args["train"].toBool();
  const at::Tensor grad = widened(args.tensor("grad_out"));
  const auto [mean, inverse] =
      trains ? Statistics{channels.spread(args.tensor("save_mean")), channels.spread(args.tensor("save_invstd"))}
             : running_statistics(args, channels);
  const at::Tensor z = (widened(input) - mean) * inverse;
  const at::Tensor of_bias = channels.sum(grad), of_weight = channels.sum(grad * z);
  at::Tensor of_input;
  if (asked.at(0)) {
    const at::Tensor scale = weight.defined() ? inverse * channels.spread(weight) : inverse;
    of_input = (trains ? grad.sub(of_bias, 1 / channels.count) - z * of_weight / channels.count : grad) * scale;
    of_input = of_input.to(input.scalar_type());
  }
  args.give(of_input, asked.at(1) ? channels.flat(of_weight, kept) : at::Tensor(),
            asked.at(2) ? channels.flat(of_bias, kept) : at::Tensor());
}

// The forms that PyTorch's exporters write: native_batch_norm under other names.
std::tuple<at::Tensor, at::Tensor, at::Tensor> as_native(StackArgs& args, bool trains) {
  const bool has_running = args.has("running_mean");
  return at::native_batch_norm(args.tensor("input"), args.tensor("weight"), args.tensor("bias"),
                               has_running ? args.tensor("running_mean") : at::Tensor(),
                               has_running ? args.tensor("running_var") : at::Tensor(), trains,
                               args["momentum"].toDouble(), args["eps"].toDouble());
}

void decompose_legit(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const auto [y, mean, inverse] = as_native(args, args.has("training") && args["training"].toBool());
  args.give(y, mean, inverse);
}

// With the buffer that some devices' kernels keep for the gradient.
template <bool trains>
void decompose_with_reserve(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const auto [y, mean, inverse] = as_native(args, trains);
  args.give(y, mean, inverse, args.tensor("input").new_empty({0}, at::kByte));
}

void decompose_backward_with_reserve(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const auto asked = args["output_mask"].toBoolList().vec();
  const auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
      args.tensor("grad_out"), args.tensor("input"), args.tensor("weight"), args.tensor("running_mean"),
      args.tensor("running_var"), args.tensor("save_mean"), args.tensor("save_var"), args["update"].toBool(),
      args["eps"].toDouble(), {asked.at(0), asked.at(1), asked.at(2)});
  args.give(of_input, of_weight, of_bias);
}

// Statistics of some of the step's samples would depend on the micro-batches.
bool normalises_whole_step(const Call& call) {
  if (!call.flag(call.has_arg("train") ? "train" : "training")) {
    return true;
  }
  const auto& labels = call.spec(static_cast<size_t>(call.operand_of("input")))->labels;
  return labels.empty() || std::all_of(labels[0].begin(), labels[0].end(),
                                       [](const layout::Factor& factor) { return factor.extent == factor.total; });
}

}  // namespace

void add_batch_norm_rules(RuleTable& table) {
  table.add_all({"aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
                 "aten::_native_batch_norm_legit_no_training"},
                {.map = nullptr, .decompose = decompose_legit});
  table.add("aten::_batch_norm_with_update", {.map = nullptr, .decompose = decompose_with_reserve<true>});
  table.add("aten::_batch_norm_no_update", {.map = nullptr, .decompose = decompose_with_reserve<false>});
  table.add("aten::batch_norm_backward", {.map = nullptr, .decompose = decompose_backward_with_reserve});
  table.add("aten::native_batch_norm", {.map = batch_norm_map,
                                        .local = run_batch_norm,
                                        .decompose = decompose_batch_norm,
                                        .decompose_when = trains_on_cut_batch,
                                        .shape = ShapeSource::kFactors,
                                        .exact = {{.decompose = decompose_batch_norm,
                                                   .accepts = normalises_whole_step,
                                                   .takes_narrow = exact::always}}});
  table.add("aten::native_batch_norm_backward", {.map = batch_norm_map,
                                                 .local = run_batch_norm_backward,
                                                 .decompose = decompose_batch_norm_backward,
                                                 .decompose_when = trains_on_cut_batch,
                                                 .shape = ShapeSource::kFactors,
                                                 .exact = {{.decompose = decompose_batch_norm_backward,
                                                            .accepts = normalises_whole_step,
                                                            .takes_narrow = exact::always}}});
}

}  // namespace tessera::rules
