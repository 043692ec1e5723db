// Operators on lists of tensors: their one-tensor forms have the rules, so that tensors of different layouts can stand
// in one list (dtensor/ops/lists.h).
#include "tessera/rules/families/families.h"

namespace tessera::rules {

namespace {

Special kind_of(std::string_view op) {
  const std::string_view base = op.substr(0, op.find('.'));
  if (op == "aten::_foreach_norm.Scalar") {
    return Special::kListNorm;
  }
  return base == "aten::_foreach_max" || base == "aten::_foreach_norm" || base == "aten::_foreach_powsum"
             ? Special::kListOfWholes
             : Special::kList;
}

}  // namespace

void add_list_rules(RuleTable& table) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string op = c10::toString(name);
    if (op.starts_with("aten::_foreach_") && op.find("out") == std::string::npos) {
      table.add(op, {.special = kind_of(op)});
    }
  }
  for (const std::string base :
       {"aten::_fused_adagrad_", "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"}) {
    table.add_optional(base, {.special = Special::kFusedUpdate});
    table.add_optional(base + ".tensor_lr", {.special = Special::kFusedUpdate});
  }
  table.add("aten::_amp_foreach_non_finite_check_and_unscale_", {.special = Special::kUnscale});
}

}  // namespace tessera::rules
