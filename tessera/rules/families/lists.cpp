// Operators on lists of tensors: their one-tensor forms have the rules, so that tensors of different layouts can stand
// in one list (dtensor/ops/lists.h).
#include "tessera/rules/exact/exact_kernels.h"
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

// A fused optimizer's step, with its rate as a number and as a tensor.
void add_update(RuleTable& table, const std::string& op, const std::optional<ExactRule>& exact) {
  for (const char* overload : {"", ".tensor_lr"}) {
    table.add_optional(op + overload, {.exact = exact, .special = Special::kFusedUpdate});
  }
}

}  // namespace

void add_list_rules(RuleTable& table) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string op = c10::toString(name);
    if (op.starts_with("aten::_foreach_") && op.find("out") == std::string::npos) {
      table.add(op, {.special = kind_of(op)});
    }
  }
  add_update(table, "aten::_fused_adagrad_", {});
  add_update(table, "aten::_fused_adam_", {{.local = exact::run_fused_adam}});
  add_update(table, "aten::_fused_adamw_", {{.local = exact::run_fused_adamw}});
  add_update(table, "aten::_fused_sgd_", {{.local = exact::run_fused_sgd}});
  for (const char* ours : {"tessera::adamw_8bit_", "tessera::ema_", "tessera::lion_"}) {
    table.add_optional(ours, {.exact = exact::kAsIs, .special = Special::kFusedUpdate});
  }
  table.add("aten::_amp_foreach_non_finite_check_and_unscale_", {.special = Special::kUnscale});
}

}  // namespace tessera::rules
