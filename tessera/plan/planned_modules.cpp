#include "tessera/plan/planned_modules.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

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

// Adds those with parameters of which `stage_of` knows one stage for all, and gives it.
using StageOf = std::function<std::optional<layout::Placement>(const at::Tensor&)>;
void add_passable(const ModuleTree& module, const std::string& prefix, const StageOf& stage_of, Names& names) {
  std::vector<at::Tensor> all;
  const std::function<void(const ModuleTree&)> collect = [&](const ModuleTree& part) {
    for (const auto& [name, parameter] : part.parameters) {
      all.push_back(parameter);
    }
    std::for_each(part.children.begin(), part.children.end(), collect);
  };
  for (const ModuleTree& child : module.children) {
    const std::string name = dotted(prefix, child.name);
    all.clear();
    collect(child);
    const auto stage = all.empty() ? std::nullopt : stage_of(all.front());
    if (stage && std::all_of(all.begin(), all.end(), [&](const auto& each) { return stage_of(each) == stage; })) {
      names.push_back(name);
    }
    add_passable(child, name, stage_of, names);
  }
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

Names passable_modules(const Plan& plan, const ModuleTree& model) {
  const Names walked = modules_of("always_walked", plan.always_walked, model,
                                  [&](const std::string& module) { return plan.always_walks(module); });
  const auto axis = plan.pipeline_axis();
  if (plan.schedule.empty() || !axis) {
    return {};
  }
  std::map<const c10::TensorImpl*, layout::Placement> stages;  // of parameters that have one name
  for (const NamedTensor& each : tensors_of(model)) {
    const ParameterPlan* entry = each.is_parameter && each.aliases.empty() ? plan.find(each.name) : nullptr;
    if (entry && entry->storage[static_cast<size_t>(*axis)].is_on()) {
      stages.emplace(each.tensor.unsafeGetTensorImpl(), entry->storage[static_cast<size_t>(*axis)]);
    }
  }
  Names found;
  const auto stage_of = [&](const at::Tensor& parameter) {
    const auto stage = stages.find(parameter.unsafeGetTensorImpl());
    return stage == stages.end() ? std::nullopt : std::optional(stage->second);
  };
  add_passable(model, "", stage_of, found);
  std::erase_if(found, [&](const std::string& name) {
    return std::any_of(walked.begin(), walked.end(),
                       [&](const std::string& outer) { return name == outer || name.starts_with(outer + "."); });
  });
  return found;
}

}  // namespace tessera::plan
