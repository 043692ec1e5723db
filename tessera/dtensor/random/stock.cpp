#include "tessera/dtensor/random/stock.h"

#include <ATen/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/rules/engine/draws.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;
using ArgsRef = c10::ArrayRef<IValue>;

int argument_named_generator(const c10::FunctionSchema& schema) {
  const auto index = schema.argumentIndexWithName("generator");
  return index ? *index : -1;
}

c10::OperatorHandle overload_with_generator(const c10::OperatorHandle& op) {
  c10::OperatorName name = op.operator_name();
  const std::string& overload = name.overload_name;
  name.overload_name = overload.empty()          ? "generator"
                       : overload == "low_dtype" ? "low_generator_dtype"
                                                 : overload + "_generator";
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
}

}  // namespace

at::Generator named_generator(ArgsRef args) {
  for (const IValue& value : args) {
    if (value.isGenerator() && value.toGenerator().defined()) {
      return value.toGenerator();
    }
  }
  return {};
}

at::Generator stock_generator_of(RankState& state, ArgsRef args) {
  const at::Generator named = named_generator(args);
  return named.defined() ? named : state.random.stock().handle();
}

random::StockTensor stock_tensor_of(const Spec& spec) { return {spec->sizes, spec->strides, spec->dtype}; }

void call_with_stock(RankState& state, const c10::OperatorHandle& op, Stack& stack) {
  int index = argument_named_generator(op.schema());
  const c10::OperatorHandle called = index < 0 ? overload_with_generator(op) : op;
  const auto begin = static_cast<std::ptrdiff_t>(stack.size() - op.schema().arguments().size());
  if (index < 0) {
    index = argument_named_generator(called.schema());
    stack.insert(stack.begin() + begin + index, IValue());
  }
  IValue& generator = stack[static_cast<size_t>(begin + index)];
  if (generator.isNone()) {
    rules::replace(generator, state.random.stock().handle());
  }
  const LocalScope scope;
  called.callBoxed(stack);
}

void skip_recorded(RankState& state, const c10::OperatorHandle& op, std::vector<IValue>& args,
                   const at::Tensor& result) {
  const rules::Rule& row = rules::RuleTable::instance().row(op);
  const LocalScope scope;
  at::Generator generator = stock_generator_of(state, args);
  Stack called(args.begin(), args.end());
  for (IValue& value : args) {
    if (value.isGenerator()) {
      rules::replace(value, generator.clone());
    }
  }
  if (row.permutes) {
    return call_with_stock(state, op, called);
  }
  random::StockTensor tensor{result.sizes().vec(), result.strides().vec(), result.scalar_type()};
  rules::Draws draws = row.draws;
  std::vector<IValue> args_of_draw = args;
  if (row.special == rules::Special::kBernoulli) {
    const at::Tensor p = args[op.schema().is_mutable() ? 1 : 0].toTensor();
    tensor.dtype = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    draws = rules::kUniform;
    std::vector<IValue>{IValue(), IValue(0.0), IValue(1.0)}.swap(args_of_draw);
  }
  TESSERA_CHECK(draws.stock, "[deferred] ", op.operator_name(),
                " draws according to values, which do not exist before parallelize (or place). "
                "Initialise that tensor afterwards, or build the model without `deferred`.");
  random::skip_stock(tensor, draws.stock(args_of_draw), generator);
}

}  // namespace tessera::dtensor
