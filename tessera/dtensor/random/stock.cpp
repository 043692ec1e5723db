#include "tessera/dtensor/random/stock.h"

#include <unordered_map>

#include <ATen/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using random::StockDraw;
using torch::jit::Stack;
using Args = c10::ArrayRef<IValue>;
using Target = at::Tensor&;
using From = const at::Generator&;

double number(const IValue& value) { return value.toScalar().toDouble(); }

StockDraw uniform(double from, double to) {
  return {[=](Target x, From g) { x.uniform_(from, to, g); }};
}

StockDraw normal(double mean, double std) {
  return {[=](Target x, From g) { x.normal_(mean, std, g); }, /*in_blocks=*/true};
}

StockDraw bernoulli(double p) {
  return {[=](Target x, From g) { x.bernoulli_(p, g); }};
}

StockDraw integers(int64_t from, std::optional<int64_t> to) {
  return {[=](Target x, From g) { x.random_(from, to, g); }};
}

std::optional<int64_t> integer_or_none(const IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toInt());
}

using Maker = StockDraw (*)(Args);

const std::unordered_map<std::string, Maker>& makers() {
  static const std::unordered_map<std::string, Maker> table = {
      {"aten::bernoulli.p", [](Args args) { return bernoulli(number(args[1])); }},
      {"aten::bernoulli_.float", [](Args args) { return bernoulli(number(args[1])); }},
      {"aten::cauchy_",
       [](Args args) {
         const double median = number(args[1]), sigma = number(args[2]);
         return StockDraw{[=](Target x, From g) { x.cauchy_(median, sigma, g); }};
       }},
      {"aten::exponential_",
       [](Args args) {
         const double lambda = number(args[1]);
         return StockDraw{[=](Target x, From g) { x.exponential_(lambda, g); }};
       }},
      {"aten::geometric_",
       [](Args args) {
         const double p = number(args[1]);
         return StockDraw{[=](Target x, From g) { x.geometric_(p, g); }};
       }},
      {"aten::log_normal_",
       [](Args args) {
         const double mean = number(args[1]), std = number(args[2]);
         return StockDraw{[=](Target x, From g) { x.log_normal_(mean, std, g); }};
       }},
      {"aten::normal_", [](Args args) { return normal(number(args[1]), number(args[2])); }},
      {"aten::normal_functional", [](Args args) { return normal(number(args[1]), number(args[2])); }},
      {"aten::rand", [](Args) { return uniform(0, 1); }},
      {"aten::rand_like", [](Args) { return uniform(0, 1); }},
      {"aten::randint", [](Args args) { return integers(0, args[0].toInt()); }},
      {"aten::randint.low", [](Args args) { return integers(args[0].toInt(), args[1].toInt()); }},
      {"aten::randint_like", [](Args args) { return integers(0, args[1].toInt()); }},
      {"aten::randint_like.low_dtype", [](Args args) { return integers(args[1].toInt(), args[2].toInt()); }},
      {"aten::randn", [](Args) { return normal(0, 1); }},
      {"aten::randn_like", [](Args) { return normal(0, 1); }},
      {"aten::random_", [](Args) { return StockDraw{[](Target x, From g) { x.random_(g); }}; }},
      {"aten::random_.from", [](Args args) { return integers(args[1].toInt(), integer_or_none(args[2])); }},
      {"aten::random_.to", [](Args args) { return integers(0, args[1].toInt()); }},
      {"aten::uniform", [](Args args) { return uniform(number(args[1]), number(args[2])); }},
      {"aten::uniform_", [](Args args) { return uniform(number(args[1]), number(args[2])); }},
  };
  return table;
}

// The overload with a generator as the one without is called: `aten::rand.generator`, `aten::randint.low_generator`.
std::string without_generator(std::string op) {
  for (const std::string ending : {".generator", "_generator"}) {
    if (op.ends_with(ending)) {
      op.resize(op.size() - ending.size());
    }
  }
  return op;
}

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

std::optional<StockDraw> stock_draw_of(const std::string& op, Args args) {
  const auto found = makers().find(without_generator(op));
  if (found == makers().end()) {
    return std::nullopt;
  }
  return found->second(args);
}

at::Generator named_generator(Args args) {
  for (const IValue& value : args) {
    if (value.isGenerator() && value.toGenerator().defined()) {
      return value.toGenerator();
    }
  }
  return {};
}

at::Generator stock_generator_of(RankState& state, Args args) {
  const at::Generator named = named_generator(args);
  return named.defined() ? named : state.sites.stock.handle();
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
    generator = state.sites.stock.handle();
  }
  const LocalScope scope;
  called.callBoxed(stack);
}

void skip_recorded(RankState& state, const c10::OperatorHandle& op, std::vector<IValue>& args,
                   const at::Tensor& result) {
  const std::string name = c10::toString(op.operator_name());
  const LocalScope scope;
  at::Generator generator = stock_generator_of(state, args);
  Stack called(args.begin(), args.end());
  for (IValue& value : args) {
    if (value.isGenerator()) {
      value = generator.clone();
    }
  }
  if (op.schema().name() == "aten::randperm") {
    return call_with_stock(state, op, called);
  }
  random::StockTensor tensor{result.sizes().vec(), result.strides().vec(), result.scalar_type()};
  std::optional<StockDraw> draw = stock_draw_of(name, args);
  if (name == "aten::bernoulli" || name == "aten::bernoulli_.Tensor") {
    const at::Tensor p = args[name == "aten::bernoulli" ? 0 : 1].toTensor();
    tensor.dtype = p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    draw = uniform(0, 1);
  }
  TESSERA_CHECK(draw, "[deferred] ", name,
                " draws according to values, which do not exist before parallelize (or place). "
                "Initialise that tensor afterwards, or build the model without `deferred`.");
  random::skip_stock(tensor, *draw, generator);
}

}  // namespace tessera::dtensor
