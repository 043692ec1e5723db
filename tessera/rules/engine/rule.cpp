#include "tessera/rules/engine/rule.h"

#include "tessera/base/error.h"

namespace tessera::rules {

namespace {

struct OpName {
  std::string base;
  std::string overload;
};

OpName split_name(std::string_view op) {
  const size_t dot = op.find('.');
  return {std::string(op.substr(0, dot)), dot == std::string_view::npos ? "" : std::string(op.substr(dot + 1))};
}

std::string join_name(const std::string& base, const std::string& overload) {
  return overload.empty() ? base : base + "." + overload;
}

std::optional<c10::OperatorHandle> find_op(const std::string& base, const std::string& overload) {
  return c10::Dispatcher::singleton().findOp({base, overload});
}

// Every overload of every operator, by base name.
const std::unordered_map<std::string, std::vector<std::string>>& overloads() {
  static const auto& table = *[] {
    auto* made = new std::unordered_map<std::string, std::vector<std::string>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      (*made)[name.name].push_back(name.overload_name);
    }
    return made;
  }();
  return table;
}

bool is_out_schema(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) { return argument.is_out(); });
}

// squeeze_ and the like give a tensor other sizes in place.
bool changes_metadata(std::string_view op) {
  const OpName name = split_name(op);
  const auto handle = find_op(name.base, name.overload);
  return handle && handle->hasTag(at::Tag::inplace_view);
}

// Do the arguments agree in name and type, out= arguments left aside?
bool same_inputs(const c10::FunctionSchema& a, const c10::FunctionSchema& b) {
  const auto inputs = [](const c10::FunctionSchema& schema) {
    std::vector<const c10::Argument*> result;
    for (const c10::Argument& argument : schema.arguments()) {
      if (!argument.is_out()) {
        result.push_back(&argument);
      }
    }
    return result;
  };
  const auto x = inputs(a);
  const auto y = inputs(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const c10::Argument* p, const c10::Argument* q) {
    return p->name() == q->name() && *p->type() == *q->type();
  });
}

std::string functional_of_out(const OpName& name, const c10::FunctionSchema& schema) {
  const auto it = overloads().find(name.base);
  if (it != overloads().end()) {
    for (const std::string& overload : it->second) {
      const auto op = find_op(name.base, overload);
      if (op && op->hasSchema() && !is_out_schema(op->schema()) && same_inputs(op->schema(), schema)) {
        return join_name(name.base, overload);
      }
    }
  }
  return join_name(name.base, name.overload);
}

}  // namespace

std::string functional_name(std::string_view op) {
  OpName name = split_name(op);
  const auto handle = find_op(name.base, name.overload);
  if (handle && handle->hasSchema() && is_out_schema(handle->schema())) {
    return functional_of_out(name, handle->schema());
  }
  const bool is_dunder = name.base.ends_with("__");
  if (!name.base.ends_with('_') || (is_dunder && name.base.find("::__i") == std::string::npos)) {
    return std::string(op);
  }
  if (is_dunder) {
    name.base.erase(name.base.find("::__i") + 4, 1);
  } else {
    name.base.pop_back();
  }
  return join_name(name.base, name.overload);
}

Rule Rule::in_exact(const ExactRule& rule) const {
  Rule row = *this;
  row.exact = rule;
  return row;
}

void RuleTable::add(std::string_view op, Rule rule) {
  const OpName name = split_name(op);
  TESSERA_ASSERT(!rule.is_rule() || find_op(name.base, name.overload), "rule for ", op,
                 ", which this libtorch does not have");
  add_optional(op, std::move(rule));
}

void RuleTable::add_all(const std::vector<std::string>& ops, const Rule& rule) {
  for (const std::string& op : ops) {
    add(op, rule);
  }
}

void RuleTable::add_optional(std::string_view op, Rule rule) {
  TESSERA_ASSERT(rules_.emplace(std::string(op), std::move(rule)).second, "two rows for ", op);
}

const Rule* RuleTable::find(std::string_view op) const {
  const Rule* rule = &row(op);
  if (!rule->is_rule() && !changes_metadata(op)) {
    rule = &row(functional_name(op));
  }
  return rule->is_rule() ? rule : nullptr;
}

const ExactRule* RuleTable::find_exact(std::string_view op) const {
  const Rule* rule = &row(op);
  if (!rule->exact) {
    rule = &row(functional_name(op));
  }
  return rule->exact ? &*rule->exact : nullptr;
}

const Rule& RuleTable::row(std::string_view op) const {
  static const Rule& nothing = *new Rule;
  const auto found = rules_.find(std::string(op));
  return found == rules_.end() ? nothing : found->second;
}

const Rule& RuleTable::row(const c10::OperatorHandle& op) const { return row(c10::toString(op.operator_name())); }

std::vector<std::string> RuleTable::names() const {
  std::vector<std::string> result;
  for (const auto& [name, rule] : rules_) {
    if (rule.is_rule()) {
      result.push_back(name);
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace tessera::rules
