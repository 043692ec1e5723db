#include "tessera/plan/recomputed.h"

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/adapters.h"
#include "tessera/plan/draft.h"

namespace tessera::plan {
namespace {

using Names = std::vector<std::string>;

void add_names(const ModuleTree& module, const std::string& prefix, Names& names) {
  for (const ModuleTree& child : module.children) {
    const std::string name = dotted(prefix, child.name);
    names.push_back(name);
    add_names(child, name, names);
  }
}

Names names_of(const ModuleTree& model) {
  Names names;
  add_names(model, "", names);
  return names;
}

// Patterns that match: for modules that are called like `pattern` inside of others, or else for all.
Names patterns_near(const std::string& pattern, const Names& names) {
  Names near, all;
  const auto add = [](Names& to, const std::string& name) {
    if (std::find(to.begin(), to.end(), name) == to.end()) {
      to.push_back(name);
    }
  };
  for (const std::string& name : names) {
    add(all, general(name));
    if (matches("**." + pattern, name)) {
      add(near, general(name));
    }
  }
  return near.empty() ? all : near;
}

// Those of the model's modules that the plan means by these patterns; `key` is the plan's name of them.
Names modules_of(const char* key, const Names& patterns, const ModuleTree& model,
                 const std::function<bool(const std::string&)>& is_meant) {
  const Names names = names_of(model);
  for (const std::string& pattern : patterns) {
    const bool is_used = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches(pattern, name) || matches(pattern, name_before_wrapping(name));
    });
    TESSERA_CHECK_AS(PlanError, is_used, "[plan] ", key, " \"", pattern,
                     "\" matches no module of the model; accepted: patterns over their names, such as ",
                     base::join(patterns_near(pattern, names), ", "));
  }
  Names found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), is_meant);
  return found;
}

}  // namespace

Names recomputed_modules(const Plan& plan, const ModuleTree& model) {
  TESSERA_CHECK_AS(
      PlanError, plan.recompute_keep.empty() || !plan.recompute.empty(), "[plan] recompute_keep \"",
      plan.recompute_keep.empty() ? "" : plan.recompute_keep.front(),
      "\" has no effect where nothing is recomputed; accepted: patterns of modules in \"recompute\" beside "
      "it");
  return modules_of("recompute", plan.recompute, model,
                    [&](const std::string& module) { return plan.recomputes(module); });
}

Names offloaded_modules(const Plan& plan, const ModuleTree& model) {
  return modules_of("offload", plan.offload, model, [&](const std::string& module) { return plan.offloads(module); });
}

}  // namespace tessera::plan
