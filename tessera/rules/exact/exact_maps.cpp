// Functions of elements and of whole rows in `exact` numerics.
#include "tessera/rules/exact/exact_kernels.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include "tessera/kernels/rows/norms.h"
#include "tessera/kernels/rows/rows.h"
#include "tessera/rules/engine/dispatch_floats.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::rules::exact {

namespace {

using kernels::Derivative;
using kernels::Function;
using kernels::Rows;

// [rows, n] of a tensor whose rows run along `dim`, and back.
struct AlongDim {
  int64_t dim;

  at::Tensor rows(const at::Tensor& tensor) const { return tensor.movedim(dim, -1).contiguous(); }
  at::Tensor back(const at::Tensor& rows) const { return rows.movedim(-1, dim); }
};

kernels::Shape shape_of(const at::Tensor& rows, int64_t n) { return {n == 0 ? 0 : rows.numel() / n, n}; }

template <typename T>
Rows<const T> read(const at::Tensor& rows, int64_t n) {
  return {rows.const_data_ptr<T>(), n};
}
template <typename T>
Rows<T> write_rows(const at::Tensor& rows, int64_t n) {
  return {rows.data_ptr<T>(), n};
}

template <typename T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

c10::Scalar product_of(const c10::Scalar& a, const c10::Scalar& b) {
  if (a.isFloatingPoint() || b.isFloatingPoint()) {
    return a.toDouble() * b.toDouble();
  }
  return a.toLong() * b.toLong();
}

void run_function(Function function, const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor x = args.tensor("self").contiguous();
  const at::Tensor y = at::empty_like(x);
  dispatch_floats(x, "elementwise",
                  [&]<typename T>() { kernels::map<T>(function, x.numel(), x.const_data_ptr<T>(), y.data_ptr<T>()); });
  args.give_value(y);
}

void run_derivative(Derivative derivative, const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const auto operands = at::broadcast_tensors({args.tensor("self"), args.tensor("grad_output")});
  const at::Tensor x = operands[0].contiguous(), grad = operands[1].contiguous();
  const at::Tensor result = at::empty_like(x);
  dispatch_floats(x, "elementwise", [&]<typename T>() {
    kernels::map_backward<T>(derivative, x.numel(), grad.const_data_ptr<T>(), x.const_data_ptr<T>(),
                             result.data_ptr<T>());
  });
  args.give_value(result);
}

bool is_tanh_form(const LocalCall& call, torch::jit::Stack& stack) {
  return StackArgs(*call.op, stack)["approximate"].toStringRef() == "tanh";
}

}  // namespace

template <Function function>
void run_map(const LocalCall& call, torch::jit::Stack& stack) {
  run_function(function, call, stack);
}
template void run_map<Function::kErf>(const LocalCall&, torch::jit::Stack&);
template void run_map<Function::kExp>(const LocalCall&, torch::jit::Stack&);
template void run_map<Function::kLog>(const LocalCall&, torch::jit::Stack&);
template void run_map<Function::kSigmoid>(const LocalCall&, torch::jit::Stack&);
template void run_map<Function::kSilu>(const LocalCall&, torch::jit::Stack&);
template void run_map<Function::kTanh>(const LocalCall&, torch::jit::Stack&);

void run_gelu(const LocalCall& call, torch::jit::Stack& stack) {
  run_function(is_tanh_form(call, stack) ? Function::kGeluTanh : Function::kGelu, call, stack);
}

void run_gelu_backward(const LocalCall& call, torch::jit::Stack& stack) {
  run_derivative(is_tanh_form(call, stack) ? Derivative::kGeluTanh : Derivative::kGelu, call, stack);
}

void run_silu_backward(const LocalCall& call, torch::jit::Stack& stack) {
  run_derivative(Derivative::kSilu, call, stack);
}

void run_softmax(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const AlongDim along{args["dim"].toInt()};
  const at::Tensor x = along.rows(args.tensor("self"));
  const int64_t n = x.size(-1);
  const at::Tensor y = at::empty_like(x);
  dispatch_floats(x, "softmax",
                  [&]<typename T>() { kernels::softmax<T>(shape_of(x, n), read<T>(x, n), write_rows<T>(y, n)); });
  args.give_value(along.back(y));
}

void run_softmax_backward(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const AlongDim along{args["dim"].toInt()};
  const at::Tensor grad = along.rows(args.tensor("grad_output")), y = along.rows(args.tensor("output"));
  const int64_t n = y.size(-1);
  const at::Tensor result = at::empty_like(y);
  dispatch_floats(y, "softmax", [&]<typename T>() {
    kernels::softmax_backward<T>(shape_of(y, n), read<T>(grad, n), read<T>(y, n), write_rows<T>(result, n));
  });
  args.give_value(along.back(result).to(call.outputs.at(0)->dtype));  // as narrow as what was widened
}

void run_layer_norm(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor x = args.tensor("input").contiguous(), weight = args.tensor("weight"), bias = args.tensor("bias");
  const auto normalized = args["normalized_shape"].toIntVector();
  const int64_t n = c10::multiply_integers(normalized);
  std::vector<int64_t> statistics = x.sizes().vec();
  std::fill(statistics.end() - static_cast<int64_t>(normalized.size()), statistics.end(), 1);
  const at::Tensor y = at::empty_like(x), mean = at::empty(statistics, x.options()), rstd = at::empty_like(mean);
  const double eps = args["eps"].toDouble();
  dispatch_floats(x, "layer_norm", [&]<typename T>() {
    kernels::layer_norm<T>(shape_of(x, n), read<T>(x, n), data_or_null<T>(weight), data_or_null<T>(bias), eps,
                           write_rows<T>(y, n), mean.data_ptr<T>(), rstd.data_ptr<T>());
  });
  args.give(y, mean, rstd);
}

// A row of nothing but minus infinity becomes +0.
void decompose_safe_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const int64_t dim = args["dim"].toInt();
  const at::Tensor self = args.tensor("self");
  const at::Tensor x = args["dtype"].isNone() ? self : self.to(args["dtype"].toScalarType());
  const at::Tensor is_nothing = at::amax(x, dim, /*keepdim=*/true) == -std::numeric_limits<double>::infinity();
  args.give_value(at::_softmax(x, dim, /*half_to_float=*/false).masked_fill(is_nothing, 0));
}

namespace {

// The second operand times the factor.
c10::IValue scaled_other(StackArgs& args) {
  const c10::Scalar alpha = args["alpha"].toScalar();
  if (args["other"].isTensor()) {
    return at::mul(args.tensor("other"), alpha);
  }
  return product_of(args["other"].toScalar(), alpha);
}

}  // namespace

// With a factor: two roundings for each element.
void decompose_scaled_add(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  const c10::IValue other = scaled_other(args);
  args.give_value(other.isTensor() ? at::add(self, other.toTensor()) : at::add(self, other.toScalar()));
}

void decompose_scaled_sub(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  const c10::IValue other = scaled_other(args);
  args.give_value(other.isTensor() ? at::sub(self, other.toTensor()) : at::sub(self, other.toScalar()));
}

void decompose_scaled_rsub(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor scaled = at::mul(args.tensor("self"), args["alpha"].toScalar());
  args.give_value(at::rsub(scaled, args["other"].toScalar()));
}

void decompose_tanh_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor y = args.tensor("output");
  args.give_value(args.tensor("grad_output") * (1 - y * y));
}

void decompose_sigmoid_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor y = args.tensor("output");
  args.give_value(args.tensor("grad_output") * ((1 - y) * y));
}

void decompose_layer_norm_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor input = args.tensor("input"), scale = args.tensor("weight"), grad = widened(args.tensor("grad_out")),
                   x = widened(input), weight = scale.defined() ? widened(scale) : scale;
  const int64_t normalized = static_cast<int64_t>(args["normalized_shape"].toIntVector().size());
  const double n = static_cast<double>(c10::multiply_integers(args["normalized_shape"].toIntVector()));
  const auto wanted = args["output_mask"].toBoolList();
  const at::Tensor rstd = widened(args.tensor("rstd")), z = (x - widened(args.tensor("mean"))) * rstd;
  const auto of_weights = (scale.defined() ? scale : input).scalar_type();
  std::vector<int64_t> tokens, features;
  for (int64_t d = 0; d < x.dim(); ++d) {
    (d < x.dim() - normalized ? tokens : features).push_back(d);
  }

  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) {
    const at::Tensor g = weight.defined() ? grad * weight : grad;
    const at::Tensor from_mean = at::sum(g, features, /*keepdim=*/true) / n,
                     from_scale = at::sum(g * z, features, /*keepdim=*/true) / n;
    grad_input = ((g - from_mean - z * from_scale) * rstd).to(input.scalar_type());
  }
  if (wanted[1]) {
    grad_weight = at::sum(grad * z, tokens).to(of_weights);
  }
  if (wanted[2]) {
    grad_bias = at::sum(grad, tokens).to(of_weights);
  }
  args.give(grad_input, grad_weight, grad_bias);
}

}  // namespace tessera::rules::exact
