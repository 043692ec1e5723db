#include "tessera/dtensor/plan/call_shapes.h"

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

IValue meta_argument(const IValue& value) {
  const auto meta_tensor = [](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return tensor;  // kernels take a number as it is
    }
    return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  };
  if (value.isTensor()) {
    return meta_tensor(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(meta_tensor(tensor));
    }
    return list;
  }
  if (value.isDevice()) {
    return c10::Device(c10::kMeta);
  }
  if (value.isList()) {
    const auto items = value.toListRef();
    if (std::none_of(items.begin(), items.end(), [](const IValue& item) { return item.isTensor(); })) {
      return value;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& item : items) {
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(meta_tensor(item.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

rules::Output output_like(const at::Tensor& tensor) {
  rules::Output output;
  if (!tensor.defined()) {
    return output;
  }
  output.sizes = tensor.sizes().vec();
  output.strides = tensor.strides().vec();
  output.dtype = tensor.scalar_type();
  return output;
}

// The operand that argument `arg` is.
int operand_of_arg(const rules::Call& call, int arg) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].arg == arg) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// Shapes of the results, from the operator itself on meta tensors. Fills `defined` for each output.
void outputs_on_meta(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined) {
  LocalScope scope;
  Stack stack;
  stack.reserve(call.args.size());
  for (const IValue& value : call.args) {
    stack.push_back(meta_argument(value));
  }
  size_t operand = 0;
  for_each_tensor(Stack(stack), [&](const at::Tensor& tensor, int arg, int item) {
    if (const auto dtype = call.operands[operand++].spec->dtype; dtype != tensor.scalar_type()) {  // it is read so
      replace_tensor(stack[static_cast<size_t>(arg)], item, tensor.to(dtype));
    }
  });
  info.op.callBoxed(stack);
  for (size_t i = 0; i < info.num_returns(); ++i) {
    const IValue& result = stack[stack.size() - info.num_returns() + i];
    if (result.isTensorList()) {
      plan.list_returns.push_back(static_cast<int>(result.toTensorList().size()));
      for (const at::Tensor& tensor : result.toTensorVector()) {
        call.outputs.push_back(output_like(tensor));
        call.outputs.back().is_view = info.is_view;
        defined.push_back(true);
      }
      continue;
    }
    plan.list_returns.push_back(-1);
    if (!result.isTensor()) {
      continue;
    }
    call.outputs.push_back(output_like(result.toTensor()));
    defined.push_back(result.toTensor().defined());
    call.outputs.back().is_view = info.is_view;
    if (info.written_return[i] >= 0) {
      call.outputs.back().written_operand = operand_of_arg(call, info.written_return[i]);
    }
  }
}

// Operators that libtorch runs on meta tensors from Python only are elementwise: their results are like their first
// operand.
void outputs_like_first(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined) {
  const layout::SpecData& first = *call.operands.at(0).spec;
  for (size_t i = 0; i < info.num_returns(); ++i) {
    const int written = info.written_return[i] >= 0 ? operand_of_arg(call, info.written_return[i]) : -1;
    call.outputs.push_back(
        {.sizes = first.sizes, .strides = first.strides, .dtype = first.dtype, .written_operand = written});
    defined.push_back(true);
    plan.list_returns.push_back(-1);
  }
}

}  // namespace

void infer_outputs(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined) {
  info.has_meta ? outputs_on_meta(info, call, plan, defined) : outputs_like_first(info, call, plan, defined);
}

void outputs_from_factors(const OpInfo& info, rules::Call& call, const rules::FactorMap& map, CallPlan& plan,
                          std::vector<bool>& defined) {
  for (const rules::TensorFactors& tensor : map.outputs) {
    rules::Output output;
    for (const rules::DimFactors& dim : tensor) {
      int64_t size = 1;
      for (int factor : dim) {
        size *= map.factors[factor].extent;
      }
      output.sizes.push_back(size);
    }
    const layout::SpecData& first = *call.operands.at(0).spec;
    const size_t index = call.outputs.size();
    output.dtype = map.dtypes.empty() ? first.dtype : map.dtypes.at(index);
    const bool is_elementwise = tensor == map.operands.at(0) && output.sizes == first.sizes;
    output.strides = is_elementwise ? first.strides : contiguous_strides(output.sizes);
    if (info.written_return.at(index) >= 0) {
      output.written_operand = operand_of_arg(call, info.written_return[index]);
    }
    call.outputs.push_back(std::move(output));
    defined.push_back(true);
    plan.list_returns.push_back(-1);
  }
  TESSERA_ASSERT(plan.list_returns.size() == info.num_returns());
}

}  // namespace tessera::dtensor
