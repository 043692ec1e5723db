#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

bool may_hold_tensors(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

OpInfo::OpInfo(const c10::OperatorHandle& handle, int number)
    : op(handle), id(number), name(c10::toString(handle.operator_name())), row(rules::RuleTable::instance().row(name)) {
  const c10::FunctionSchema& schema = handle.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    args.push_back({alias && alias->isWrite()});
    if (may_hold_tensors(argument)) {
      tensor_args.push_back(static_cast<int>(args.size()) - 1);
    }
    is_out |= argument.is_out();
    writes |= args.back().written;
  }
  for (const c10::Argument& result : schema.returns()) {
    int written = -1;
    if (const c10::AliasInfo* alias = result.alias_info()) {
      if (!alias->isWrite()) {
        is_view = true;
      }
      for (size_t i = 0; alias->isWrite() && i < args.size(); ++i) {
        const c10::AliasInfo* of_argument = schema.arguments()[i].alias_info();
        if (of_argument && *of_argument == *alias) {
          written = static_cast<int>(i);
        }
      }
    }
    written_return.push_back(written);
  }
  for (c10::DispatchKey key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
                               c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    has_meta |= handle.hasKernelForDispatchKey(key);
  }
  rule = rules::RuleTable::instance().find(name);
  exact = rule ? rules::RuleTable::instance().find_exact(name) : nullptr;
}

std::string OpInfo::argument_name(int arg, int item) const {
  const std::string& name = op.schema().arguments().at(arg).name();
  return item < 0 ? name : c10::str(name, "[", item, "]");
}

namespace {

std::unordered_map<std::string, std::unique_ptr<OpInfo>>& ops() {
  static auto* all = new std::unordered_map<std::string, std::unique_ptr<OpInfo>>;
  return *all;
}

}  // namespace

const OpInfo& add_op(const c10::OperatorHandle& op, decltype(OpInfo::special) special) {
  auto info = std::make_unique<OpInfo>(op, static_cast<int>(ops().size()));
  info->special = special;
  const std::string name = info->name;
  return *ops().emplace(name, std::move(info)).first->second;
}

size_t count_ops() { return ops().size(); }

const OpInfo* find_op(const std::string& name) {
  const auto found = ops().find(name);
  return found == ops().end() ? nullptr : found->second.get();
}

}  // namespace tessera::dtensor
