#include "tessera/plan/draft.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/plan/groups.h"

namespace tessera::plan {
namespace {

// Every parameter: those of tables, then of products as they follow each other, then the others.
std::vector<std::string> ordered_names(const ModuleTree& model, const ModelRoles& roles) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    if (seen.insert(name).second) {
      names.push_back(name);
    }
  };
  for (const auto& embedding : roles.embeddings) {
    add(embedding.weight());
  }
  for (const auto& group : roles.groups) {
    for (const auto& linear : group.columns) {
      add(linear.weight());
      add(linear.bias());
    }
    if (group.row) {
      add(group.row->weight());
    }
  }
  for (const auto& named : tensors_of(model)) {
    if (named.is_parameter) {
      add(named.name);
    }
  }
  return names;
}

// Entries that differ in layer numbers only become one, where its pattern then means the same for every parameter.
std::vector<ParameterPlan> collapsed(const std::vector<ParameterPlan>& entries, const ModuleTree& model) {
  std::map<std::string, const ParameterPlan*> exact;
  for (const auto& named : tensors_of(model)) {
    if (named.is_parameter) {
      exact[named.name] = nullptr;
    }
  }
  for (const auto& entry : entries) {
    exact[entry.pattern] = &entry;
  }
  const auto means_the_same = [&](const ParameterPlan& wide) {
    return std::all_of(exact.begin(), exact.end(), [&](const auto& named) {
      const auto& [name, entry] = named;
      if (!matches(wide.pattern, name)) {
        return true;
      }
      ParameterPlan own = wide;
      own.pattern = name;
      return entry != nullptr && *entry == own;
    });
  };
  std::map<std::string, bool> verdicts;
  std::vector<ParameterPlan> result;
  for (const auto& entry : entries) {
    auto wide = entry;
    wide.pattern = general(entry.pattern);
    const auto [verdict, is_new] = verdicts.try_emplace(wide.pattern, false);
    if (is_new) {
      verdict->second = means_the_same(wide);
    }
    if (is_new || !verdict->second) {
      result.push_back(verdict->second ? wide : entry);
    }
  }
  return result;
}

// Whether one of the names that the parameter has is such.
bool has_name(const NamedTensor& parameter, const std::function<bool(const std::string&)>& is_such) {
  return is_such(parameter.name) || std::any_of(parameter.aliases.begin(), parameter.aliases.end(), is_such);
}

}  // namespace

Draft::Draft(const ModuleTree& model, PlanOptions all, layout::Mesh mesh)
    : options(std::move(all)), roles(find_roles(model)), model_(model) {
  plan.mesh = std::move(mesh);
}

ParameterPlan& Draft::entry(const std::string& name) {
  const layout::Placements whole(static_cast<size_t>(plan.mesh.ndim()));
  return entries_.try_emplace(name, ParameterPlan{name, whole, {}, {}}).first->second;
}

void Draft::note(const std::string& text) {
  if (std::find(plan.notes.begin(), plan.notes.end(), text) == plan.notes.end()) {
    plan.notes.push_back(text);
  }
}

std::vector<NamedTensor> Draft::parameters() const {
  std::vector<NamedTensor> all = tensors_of(model_);
  std::erase_if(all, [](const NamedTensor& named) { return !named.is_parameter; });
  return all;
}

std::vector<ModelPart> Draft::parts() const { return parts_of(model_); }

bool Draft::is_whole(const NamedTensor& parameter) const {
  return std::any_of(options.whole.begin(), options.whole.end(), [&](const std::string& pattern) {
    return has_name(parameter, [&](const std::string& name) { return matches(pattern, name); });
  });
}

Draft::Wanted Draft::wanted_of(const NamedTensor& parameter) const {
  Wanted wanted{"", options.sharding, options.precision};
  for (const GroupOptions& group : options.groups) {
    has_name(parameter, [&](const std::string& name) {
      const std::string module = group_name(name, group.pattern);
      if (module.size() < name.size() && module.size() > wanted.group.size() && matches(group.pattern, module)) {
        wanted = {module, group.sharding, group.precision};
      }
      return false;
    });
  }
  return wanted;
}

std::optional<int64_t> Draft::wide_axis(layout::AxisRole role) const {
  const auto axes = layout::axes_of(plan.mesh, role);
  if (axes.empty()) {
    return std::nullopt;
  }
  const auto axis = plan.mesh.axis_index(axes.back());
  return plan.mesh.axis(axis).size > 1 ? std::optional(axis) : std::nullopt;
}

std::vector<int64_t> Draft::wide_axes(layout::AxisRole role) const {
  std::vector<int64_t> wide;
  for (const auto& name : layout::axes_of(plan.mesh, role)) {
    if (const auto axis = plan.mesh.axis_index(name); plan.mesh.axis(axis).size > 1) {
      wide.push_back(axis);
    }
  }
  return wide;
}

Plan Draft::finish() {
  std::vector<ParameterPlan> entries;
  for (const auto& name : ordered_names(model_, roles)) {
    if (const auto found = entries_.find(name); found != entries_.end()) {
      entries.push_back(found->second);
    }
  }
  plan.parameters = collapsed(entries, model_);
  return std::move(plan);
}

std::string general(const std::string& name) {
  return base::join(base::split(name, '.'), ".", [](std::ostream& out, const std::string& part) {
    out << (base::try_parse_int(part) ? "*" : part);
  });
}

}  // namespace tessera::plan
