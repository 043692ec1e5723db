// Steps of optimizers in `exact` numerics, on lists of parts whose elements stand in one order without gaps.
#include "tessera/rules/exact/exact_kernels.h"

#include "tessera/kernels/maps/optimizer.h"
#include "tessera/rules/engine/dispatch_floats.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::rules::exact {

namespace {

using Tensors = std::vector<at::Tensor>;

// A rate that is given as a number or as a tensor.
double number_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item<double>() : value.toDouble();
}

// What scaled gradients are divided by, in place. False where the step is left out: one of them is not finite.
bool unscale(StackArgs& args, const Tensors& gradients) {
  const at::Tensor found = args.tensor("found_inf"), scale = args.tensor("grad_scale");
  if (found.defined() && found.item<double>() == 1) {
    return false;
  }
  for (const at::Tensor& gradient : gradients) {
    if (scale.defined()) {
      gradient.div_(scale.item<double>());
    }
  }
  return true;
}

void check_alike(const char* name, const at::Tensor& parameter, const at::Tensor& other) {
  TESSERA_CHECK(other.scalar_type() == parameter.scalar_type() && other.numel() == parameter.numel(), "[", name,
                "] a parameter ", parameter.scalar_type(), parameter.sizes(), " and what belongs to it, ",
                other.scalar_type(), other.sizes(), "; accepted: one dtype and one size");
}

template <kernels::Decay decay>
void run_adam(StackArgs args, const char* name) {
  const Tensors parameters = args["self"].toTensorVector(), gradients = args["grads"].toTensorVector(),
                averages = args["exp_avgs"].toTensorVector(), squares = args["exp_avg_sqs"].toTensorVector(),
                largest = args["max_exp_avg_sqs"].toTensorVector(), steps = args["state_steps"].toTensorVector();
  if (!unscale(args, gradients)) {
    return args.give();
  }
  kernels::AdamW options{.lr = number_of(args["lr"]),
                         .beta1 = args["beta1"].toDouble(),
                         .beta2 = args["beta2"].toDouble(),
                         .eps = args["eps"].toDouble(),
                         .weight_decay = args["weight_decay"].toDouble(),
                         .decay = decay,
                         .maximize = args["maximize"].toBool()};
  const bool has_largest = args["amsgrad"].toBool();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    for (const at::Tensor* other : {&gradients[i], &averages[i], &squares[i], has_largest ? &largest[i] : &parameter}) {
      check_alike(name, parameter, *other);
    }
    options.step = static_cast<int64_t>(steps[i].item<double>());
    dispatch_floats(parameter, name, [&]<typename T>() {
      kernels::adamw_step<T>(options, parameter.numel(), parameter.data_ptr<T>(), gradients[i].const_data_ptr<T>(),
                             averages[i].data_ptr<T>(), squares[i].data_ptr<T>(),
                             has_largest ? largest[i].data_ptr<T>() : nullptr);
    });
  }
  args.give();
}

}  // namespace

void run_fused_adam(const LocalCall& call, torch::jit::Stack& stack) {
  run_adam<kernels::Decay::kInGradient>({*call.op, stack}, "fused_adam");
}

void run_fused_adamw(const LocalCall& call, torch::jit::Stack& stack) {
  run_adam<kernels::Decay::kApart>({*call.op, stack}, "fused_adamw");
}

void run_fused_sgd(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const Tensors parameters = args["self"].toTensorVector(), gradients = args["grads"].toTensorVector(),
                buffers = args["momentum_buffer_list"].toTensorVector();
  if (!unscale(args, gradients)) {
    return args.give();
  }
  const bool is_first = args["is_first_step"].toBool();
  const kernels::Sgd options{.lr = number_of(args["lr"]),
                             .momentum = args["momentum"].toDouble(),
                             .dampening = is_first ? 0 : args["dampening"].toDouble(),
                             .weight_decay = args["weight_decay"].toDouble(),
                             .nesterov = args["nesterov"].toBool(),
                             .maximize = args["maximize"].toBool()};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Tensor& buffer = options.momentum != 0 ? buffers[i] : parameter;
    check_alike("fused_sgd", parameter, gradients[i]);
    check_alike("fused_sgd", parameter, buffer);
    if (is_first && options.momentum != 0) {
      buffer.zero_();  // it is memory that nobody has written yet
    }
    dispatch_floats(parameter, "fused_sgd", [&]<typename T>() {
      kernels::sgd_step<T>(options, parameter.numel(), parameter.data_ptr<T>(), gradients[i].const_data_ptr<T>(),
                           options.momentum != 0 ? buffer.data_ptr<T>() : nullptr);
    });
  }
  args.give();
}

}  // namespace tessera::rules::exact
