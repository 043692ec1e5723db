#include "tessera/watch/imagined_ops.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "tessera/dtensor/record/arguments.h"
#include "tessera/rules/engine/rule.h"
#include "tessera/rules/families/kernel_memory.h"
#include "tessera/watch/imagined_memory.h"
#include "tessera/watch/imagined_shapes.h"

namespace tessera::watch {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// Operators whose arguments take no more bytes than this have their values: tokens, masks of them, and scalars are
// real, as programs look at them.
constexpr size_t kFew = size_t{1} << 10, kFewOfIntegers = size_t{64} << 20;

// What their kernels take for themselves is found on operands up to here; of larger ones it is little.
constexpr size_t kFewOfProducts = size_t{4} << 20;

enum class Way : uint8_t {
  kAsEver,     // made of others, or a view, or what nothing is known of
  kUntouched,  // the results are what it writes to
  kOnMeta,     // new results of the sizes that its meta kernel says
  kByRule,     // ... that its rule says
  kEvenly,     // ... that its meta kernel says, and what it chooses is looked at
};

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

bool shares_memory(const c10::Argument& result) { return result.alias_info() != nullptr; }

bool has_tensors(const c10::Argument& argument) {
  const c10::Type& type = *argument.type();
  return type.isSubtypeOf(*c10::TensorType::get()) || type.isSubtypeOf(*c10::ListType::ofTensors());
}

// What libtorch implements for the CPU itself; copies it has for all devices in one.
bool has_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
         rules::RuleTable::instance().row(op).carry == rules::Carry::kCopy;
}

Way way_of(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto& results = op.schema().returns();
  if (!has_kernel(op) || op.hasTag(at::Tag::inplace_view)) {
    return Way::kAsEver;
  }
  if (std::any_of(arguments.begin(), arguments.end(), writes)) {
    return std::all_of(results.begin(), results.end(), writes) ? Way::kUntouched : Way::kAsEver;
  }
  if (std::any_of(results.begin(), results.end(), shares_memory) ||
      !std::any_of(arguments.begin(), arguments.end(), has_tensors) ||
      !std::all_of(results.begin(), results.end(), has_tensors)) {
    return Way::kAsEver;
  }
  return rules::RuleTable::instance().row(op).chooses    ? Way::kEvenly
         : op.hasKernelForDispatchKey(DispatchKey::Meta) ? Way::kOnMeta
         : has_shapes_by_rule(op)                        ? Way::kByRule
                                                         : Way::kAsEver;
}

Way known_way_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, Way> known;
  const auto found = known.find(op);
  return found != known.end() ? found->second : known.emplace(op, way_of(op)).first->second;
}

Stack on_meta(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  Stack stack(args.begin(), args.end());
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (arguments[i].name() == "device" && !stack[i].isNone()) {
      stack[i] = c10::Device(c10::kMeta);
    }
    if (stack[i].isList()) {
      stack[i] = stack[i].toList().copy();  // whose items are replaced
    }
  }
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int item) {
    if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      dtensor::replace_tensor(stack[static_cast<size_t>(arg)], item,
                              at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
    }
  });
  return stack;
}

at::Tensor on_cpu(const at::Tensor& meta) {
  return meta.defined() ? at::Tensor(at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), meta.scalar_type()))
                        : at::Tensor();
}

void run_on_meta(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Stack results = on_meta(op, torch::jit::last(*stack, count));
  {
    const c10::impl::ExcludeDispatchKeyGuard really(kImagined);
    op.callBoxed(results);
  }
  torch::jit::drop(*stack, count);
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      stack->emplace_back(on_cpu(result.toTensor()));
      continue;
    }
    c10::List<at::Tensor> list;
    for (const at::Tensor& meta : result.toTensorVector()) {
      list.push_back(on_cpu(meta));
    }
    stack->emplace_back(std::move(list));
  }
}

// As a router that sends as many tokens to each expert.
void choose_evenly(const c10::OperatorHandle& op, Stack* stack) {
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(*stack, op.schema().arguments().size());
  const at::Tensor values = args[0].toTensor();
  const int64_t extent = values.dim() == 0 ? 1 : values.size(args[2].toInt());
  run_on_meta(op, stack);
  const c10::impl::ExcludeDispatchKeyGuard really(kImagined);
  const at::Tensor chosen = stack->back().toTensor();
  chosen.copy_(at::arange(chosen.numel(), chosen.options()).remainder_(extent).view_as(chosen));
}

void leave_untouched(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Stack written;
  for (size_t i = 0; i < count && written.size() < schema.returns().size(); ++i) {
    if (writes(schema.arguments()[i])) {
      written.push_back(torch::jit::peek(*stack, i, count));
    }
  }
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), written.begin(), written.end());
}

struct Operands {
  bool are_plain = true;          // tensors with memory on the CPU
  bool are_integers = true;       // or truth values
  bool has_empty_output = false;  // which gets its size from the operator
  size_t bytes = 0;

  bool can_be_pretended(Way way) const {
    const size_t real = are_integers ? kFewOfIntegers : way == Way::kEvenly ? 0 : kFew;
    return are_plain && !has_empty_output && bytes > real;
  }
};

Operands operands_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  Operands operands;
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int) {
    operands.are_plain &=
        tensor.layout() == at::kStrided && tensor.key_set().has_backend(c10::BackendComponent::CPUBit);
    if (operands.are_plain) {
      operands.bytes += tensor.nbytes();
      operands.are_integers &= at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
      operands.has_empty_output |= tensor.numel() == 0 && writes(op.schema().arguments()[static_cast<size_t>(arg)]);
    }
  });
  return operands;
}

// What the memory that its kernel takes depends on.
std::string form_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  std::ostringstream form;
  form << op.operator_name() << at::get_num_threads();
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    form << tensor.scalar_type() << tensor.sizes() << tensor.strides();
  });
  return form.str();
}

void pretend(const c10::OperatorHandle& op, Way way, Stack* stack) {
  switch (way) {
    case Way::kUntouched: return leave_untouched(op, stack);
    case Way::kByRule: return give_shapes_by_rule(op, stack);
    case Way::kEvenly: return choose_evenly(op, stack);
    default: return run_on_meta(op, stack);
  }
}

// The first of its form is run, to see what its kernel takes.
void pretend_with_memory(const c10::OperatorHandle& op, DispatchKeySet below, Way way, Stack* stack) {
  thread_local std::unordered_map<std::string, int64_t> taken;
  ImaginedBytes& bytes = ImaginedMemory::bytes();
  const std::string form = form_of(op, torch::jit::last(*stack, op.schema().arguments().size()));
  if (const auto found = taken.find(form); found != taken.end()) {
    pretend(op, way, stack);
    bytes.touch(found->second);
    return;
  }
  const int64_t peak = bytes.peak.exchange(bytes.live);
  op.redispatchBoxed(below, stack);
  taken[form] = bytes.peak - bytes.live;
  bytes.peak = std::max<int64_t>(peak, bytes.peak);
}

void imagine(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kImagined);
  const Way way = known_way_of(op);
  if (way == Way::kAsEver) {
    return op.redispatchBoxed(below, stack);
  }
  const Operands operands = operands_of(op, torch::jit::last(*stack, op.schema().arguments().size()));
  if (!operands.can_be_pretended(way)) {
    return op.redispatchBoxed(below, stack);
  }
  if (operands.bytes <= kFewOfProducts && rules::kernel_takes_memory(op.operator_name())) {
    return pretend_with_memory(op, below, way, stack);
  }
  pretend(op, way, stack);
}

}  // namespace

void register_imagined_ops() {
  static const auto library = [] {
    auto all = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kImagined, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFromBoxedFunction<&imagine>());
    return all;
  }();
  static_cast<void>(library);
}

}  // namespace tessera::watch
