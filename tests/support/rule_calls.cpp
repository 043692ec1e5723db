#include "tests/support/rule_calls.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::rules::testing {

namespace {

at::Tensor to_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// Calls `visit(tensor)` for each defined tensor and puts back what it returns.
template <typename Visit>
c10::IValue map_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(visit(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      result.push_back(visit(tensor));
    }
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const auto& item : value.toOptionalTensorVector()) {
      result.push_back(item && item->defined() ? std::optional<at::Tensor>(visit(*item)) : std::nullopt);
    }
    return result;
  }
  return value;
}

int written_operand(const Call& call, const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) {
    return -1;
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const c10::AliasInfo* from = schema.arguments()[call.operands[i].arg].alias_info();
    if (from != nullptr && *from == *alias) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void add_outputs_of_meta(Call& call, const c10::OperatorHandle& op) {
  const c10::NoGradGuard no_grad;
  torch::jit::Stack stack;
  for (const c10::IValue& arg : call.args) {
    stack.push_back(map_tensors(arg, to_meta));
  }
  op.callBoxed(stack);
  for (size_t i = 0; i < stack.size(); ++i) {
    const int written = written_operand(call, op.schema(), i);
    map_tensors(stack[i], [&](const at::Tensor& tensor) {
      call.outputs.push_back(
          {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), written, tensor.is_view()});
      return tensor;
    });
  }
}

void add_outputs_of_factors(Call& call, const FactorMap& map) {
  for (const TensorFactors& tensor : map.outputs) {
    Output output;
    output.dtype = map.dtypes.empty() ? call.spec(0)->dtype : map.dtypes.at(call.outputs.size());
    for (const DimFactors& dim : tensor) {
      int64_t size = 1;
      for (int factor : dim) {
        size *= map.factors[factor].extent;
      }
      output.sizes.push_back(size);
    }
    const layout::SpecData& first = *call.spec(0);
    const auto contiguous = [&] {
      return layout::Spec::contiguous(first.mesh, layout::Placements(first.mesh.ndim()), output.sizes, output.dtype)
          ->strides;
    };
    output.strides = output.sizes == first.sizes ? first.strides : contiguous();
    output.written_operand = written_operand(call, *call.schema, call.outputs.size());
    call.outputs.push_back(std::move(output));
  }
}

}  // namespace

c10::OperatorHandle find_op(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

std::vector<c10::IValue> make_args(const std::string& op, const std::vector<at::Tensor>& tensors, const Named& rest) {
  std::vector<c10::IValue> args;
  const auto& arguments = find_op(op).schema().arguments();
  const auto find_named = [&](const c10::Argument& argument) {
    return std::find_if(rest.begin(), rest.end(), [&](const auto& e) { return e.first == argument.name(); });
  };
  size_t required = std::count_if(arguments.begin(), arguments.end(), [&](const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::TensorType && find_named(argument) == rest.end();
  });
  size_t next = 0;
  for (const c10::Argument& argument : arguments) {
    const auto named = find_named(argument);
    const bool is_required = argument.type()->kind() == c10::TypeKind::TensorType;
    const bool is_optional = argument.type()->str() == "Tensor?" && tensors.size() - next > required;
    if (named != rest.end()) {
      args.push_back(named->second);
    } else if ((is_required || is_optional) && next < tensors.size()) {
      required -= is_required ? 1 : 0;
      args.emplace_back(tensors[next++]);
    } else {
      args.push_back(argument.default_value().value_or(c10::IValue()));
    }
  }
  return args;
}

std::vector<std::pair<at::Tensor, int>> tensors_of(const std::vector<c10::IValue>& args) {
  std::vector<std::pair<at::Tensor, int>> result;
  for (size_t i = 0; i < args.size(); ++i) {
    map_tensors(args[i], [&](const at::Tensor& tensor) {
      result.emplace_back(tensor, static_cast<int>(i));
      return tensor;
    });
  }
  return result;
}

std::vector<c10::IValue> with_tensors(const std::vector<c10::IValue>& args, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  std::vector<c10::IValue> result;
  for (const c10::IValue& arg : args) {
    result.push_back(map_tensors(arg, [&](const at::Tensor&) { return tensors.at(next++); }));
  }
  return result;
}

Call make_call(const std::string& op, std::vector<c10::IValue> args, const std::vector<layout::Spec>& specs) {
  const c10::OperatorHandle handle = find_op(op);
  Call call;
  call.name = op;
  call.schema = &handle.schema();
  call.args = std::move(args);
  for (const auto& [tensor, arg] : tensors_of(call.args)) {
    const c10::AliasInfo* alias = call.schema->arguments()[arg].alias_info();
    call.operands.push_back(
        {.spec = specs.at(call.operands.size()), .arg = arg, .is_written = alias && alias->isWrite()});
  }
  const Rule* rule = RuleTable::instance().find(op);
  if (rule != nullptr && rule->decompose != nullptr &&
      (rule->decompose_when == nullptr || rule->decompose_when(call))) {
    return call;
  }
  if (rule != nullptr && rule->shape == ShapeSource::kFactors) {
    add_outputs_of_factors(call, rule->map(call));
  } else {
    add_outputs_of_meta(call, handle);
  }
  return call;
}

layout::Spec Caller::spec(const Arg& arg) const {
  return layout::Spec::contiguous(mesh_, layout::parse_placements(mesh_, arg.layout), arg.sizes, arg.dtype);
}

Call Caller::call(const std::string& op, const std::vector<Arg>& tensors, const Named& rest) const {
  std::vector<layout::Spec> specs;
  std::vector<at::Tensor> metas;
  for (const Arg& arg : tensors) {
    specs.push_back(spec(arg));
    metas.push_back(at::empty_strided(specs.back()->sizes, specs.back()->strides,
                                      at::TensorOptions(c10::kMeta).dtype(specs.back()->dtype)));
  }
  Call call = make_call(op, make_args(op, metas, rest), specs);
  for (size_t i = 0; i < tensors.size() && i < call.operands.size(); ++i) {
    call.operands[i].is_parameter = tensors[i].is_parameter;
  }
  return call;
}

std::string Caller::run(const Call& call, const Wishes& wishes) const {
  const Rule* rule = RuleTable::instance().find(call.name);
  TESSERA_CHECK(rule != nullptr && rule->map, "no rule for ", call.name);
  const Propagation result = propagate(call, rule->map(call), wishes);
  const auto write = [](std::ostream& out, const layout::Spec& spec) { out << spec.layout_str(); };
  return base::join(result.operands, " x ", write) + " -> " + base::join(result.outputs, ", ", write);
}

}  // namespace tessera::rules::testing
