#include "tessera/rules/families/operators_named.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/rules/engine/rule.h"

namespace tessera::rules {

namespace {

using Names = std::vector<std::string>;

// What programs call that never runs under its own name.
const std::map<std::string, Names>& composites() {
  static const std::map<std::string, Names> all = {
      {"einsum", {"tessera::contract"}},
      {"layer_norm", {"aten::native_layer_norm"}},
      {"linear", {"tessera::contract"}},
      {"log_softmax", {"aten::_log_softmax"}},
      {"matmul", {"tessera::contract"}},
      {"scaled_dot_product_attention", {"tessera::attention", "tessera::fused_attention"}},
      {"softmax", {"aten::_softmax"}},
  };
  return all;
}

std::string_view without_namespace(std::string_view op) {
  const size_t colons = op.find("::");
  return colons == std::string_view::npos ? op : op.substr(colons + 2);
}

std::string_view without_overload(std::string_view op) { return op.substr(0, op.find('.')); }

bool is_named(std::string_view op, std::string_view name) {
  return op == name || without_overload(op) == name || without_namespace(op) == name ||
         without_namespace(without_overload(op)) == name;
}

bool is_operator(std::string_view name) {
  const auto all = c10::Dispatcher::singleton().getAllOpNames();
  return std::any_of(all.begin(), all.end(),
                     [&](const c10::OperatorName& op) { return is_named(c10::toString(op), name); });
}

// Whether a call reads tensors and leaves new ones, all of which it returns.
bool computes_tensors(const std::string& op) {
  const size_t dot = op.find('.');
  const auto handle =
      c10::Dispatcher::singleton().findSchema({op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
  if (!handle) {
    return false;
  }
  const auto& schema = handle->schema();
  const auto is_new = [](const c10::Argument& result) {
    return !result.alias_info() && result.type()->kind() == c10::TypeKind::TensorType;
  };
  const auto may_hold_tensors = [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  };
  const auto& args = schema.arguments();
  return !schema.returns().empty() && std::all_of(schema.returns().begin(), schema.returns().end(), is_new) &&
         std::any_of(args.begin(), args.end(), may_hold_tensors) &&
         std::none_of(args.begin(), args.end(), [](const c10::Argument& argument) { return argument.alias_info(); });
}

bool is_kept_apart(const Rule& row) {
  switch (row.special) {
    case Special::kNone:
    case Special::kBernoulli:
    case Special::kDrawByValues:
    case Special::kDropout:
    case Special::kRandomLike:
    case Special::kWhole: return row.plain_result < 0;
    default: return false;
  }
}

}  // namespace

Names operators_named(std::string_view name) {
  const auto composite = composites().find(std::string(name.starts_with("aten::") ? without_namespace(name) : name));
  std::set<std::string> found;
  if (composite != composites().end()) {
    found.insert(composite->second.begin(), composite->second.end());
  }
  std::set<std::string> near;
  for (const auto& [op, row] : RuleTable::instance().rows()) {
    if (is_kept_apart(row) && computes_tensors(op)) {
      near.emplace(without_namespace(without_overload(op)));
      if (is_named(op, name)) {
        found.insert(op);
      }
    }
  }
  if (found.empty()) {
    for (const auto& [called, ops] : composites()) {
      near.insert(called);
    }
    const Names all(near.begin(), near.end());
    TESSERA_CHECK_AS(PlanError, !is_operator(name), "[recompute] keep \"", name,
                     "\": an operator that gives no new tensors of its own (it writes, is a view, or gives other "
                     "values); accepted: operators that compute tensors, such as mm and linear");
    TESSERA_THROW(PlanError, "[recompute] keep \"", name, "\": no operator is called so",
                  base::did_you_mean(without_namespace(name), all), "; accepted: names as the program prints them (",
                  "aten::mm, mm), or as programs call them (",
                  base::join(composites(), ", ", [](std::ostream& out, const auto& item) { out << item.first; }), ")");
  }
  return {found.begin(), found.end()};
}

}  // namespace tessera::rules
