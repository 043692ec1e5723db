#include "tessera/rules/exact/narrow.h"

#include <deque>
#include <mutex>

#include <ATen/OpMathType.h>
#include <ATen/native/TypeProperties.h>

#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/exact/exact_table.h"

namespace tessera::rules {

namespace {

using torch::jit::Stack;

std::string name_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

// The form in float32: the exact kernel, or the operator's own.
void run_widened(const LocalCall& call, Stack& stack) {
  const std::string name = name_of(*call.op);
  const LocalKernel exact = find_exact_rule(name)->local;
  const LocalKernel local = exact ? exact : RuleTable::instance().find(name)->local;
  WidenedArgs args(*call.op, stack);
  local ? local(call, stack) : call.op->callBoxed(stack);
  args.round_results(call.outputs);
}

void decompose_widened(const c10::OperatorHandle& op, Stack& stack) {
  const Decomposition decompose = find_exact_rule(name_of(op))->decompose;
  WidenedArgs args(op, stack);
  decompose(op, stack);
  args.round_results();
}

// The argument that result `index` is, written in place or out=; -1: it is new.
int written_argument(const c10::FunctionSchema& schema, size_t index) {
  const c10::AliasInfo* result = schema.returns()[index].alias_info();
  if (result == nullptr || !result->isWrite()) {
    return -1;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* argument = schema.arguments()[i].alias_info();
    if (argument != nullptr && argument->beforeSets() == result->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

bool is_narrow(c10::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool reads_narrow(const Call& call) {
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [](const Operand& operand) { return is_narrow(operand.spec->dtype); });
}

c10::ScalarType sum_dtype(c10::ScalarType dtype) { return is_narrow(dtype) ? at::kFloat : dtype; }

layout::Spec with_dtype(const layout::Spec& spec, c10::ScalarType dtype) {
  return spec->dtype == dtype
             ? spec
             : layout::Spec::make(spec->mesh, spec->placements, spec->sizes, spec->strides, dtype, spec->labels);
}

const ExactRule& narrow_form(const ExactRule& rule, const Call& call) {
  if (rule.takes_narrow && rule.takes_narrow(call)) {
    return rule;
  }
  ExactRule form = rule;
  form.local = run_widened;
  form.decompose = rule.decompose ? decompose_widened : nullptr;
  static std::mutex mutex;
  static std::deque<ExactRule> forms;
  const std::lock_guard lock(mutex);
  const auto known = std::find(forms.begin(), forms.end(), form);
  return known == forms.end() ? forms.emplace_back(form) : *known;
}

WidenedArgs::WidenedArgs(const c10::OperatorHandle& op, Stack& stack)
    : op_(op),
      stack_(stack),
      begin_(stack.size() - op.schema().arguments().size()),
      given_(stack.begin() + static_cast<int64_t>(begin_), stack.end()) {
  for (size_t i = begin_; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) {
      stack[i] = widened(stack[i].toTensor());
    }
  }
}

c10::ScalarType WidenedArgs::promoted_dtype() const {
  const auto& arguments = op_.schema().arguments();
  at::native::ResultTypeState state;
  for (size_t i = 0; i < given_.size(); ++i) {
    if (arguments[i].name() == "dtype" && !given_[i].isNone()) {
      return given_[i].toScalarType();
    }
    if (given_[i].isTensor() && given_[i].toTensor().defined() && given_[i].toTensor().is_floating_point()) {
      state = at::native::update_result_type_state(given_[i].toTensor(), state);
    }
  }
  return at::native::result_type(state);
}

void WidenedArgs::round_results(c10::ArrayRef<layout::Spec> outputs) {
  size_t output = 0;
  for (size_t i = begin_; i < stack_.size(); ++i) {
    if (!stack_[i].isTensor() || !stack_[i].toTensor().defined()) {
      continue;
    }
    const at::Tensor result = stack_[i].toTensor();
    const auto dtype = outputs.empty() ? promoted_dtype() : outputs.at(output++)->dtype;
    if (const int written = written_argument(op_.schema(), i - begin_); written >= 0) {
      const at::Tensor target = given_[written].toTensor();
      stack_[i] = target.is_same(result) ? result : target.copy_(result);
    } else if (result.is_floating_point()) {
      stack_[i] = result.to(dtype);
    }
  }
}

}  // namespace tessera::rules
