#include "tessera/plan/plan.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/layout/axis_role.h"
#include "tessera/plan/adapters.h"
#include "tessera/plan/groups.h"

namespace tessera::plan {
namespace {

// What an entry asks of one tensor: its own placements, or those of an activation next to it.
void verify_size(const Plan& plan, const ParameterPlan& entry, const char* what, const layout::Placements& placements) {
  TESSERA_CHECK_AS(PlanError, static_cast<int64_t>(placements.size()) == plan.mesh.ndim(), "[plan] the ", what,
                   " of \"", entry.pattern, "\" has ", placements.size(), " placements for the axes of mesh {",
                   plan.mesh.str(), "}; accepted: one for each axis");
}

void verify_placements(const Plan& plan, const ParameterPlan& entry, const char* what,
                       const layout::Placements& placements) {
  verify_size(plan, entry, what, placements);
  TESSERA_CHECK_AS(PlanError, !layout::has_partial(placements), "[plan] the ", what, " of \"", entry.pattern, "\" is ",
                   layout::str(plan.mesh, placements),
                   "; accepted: R and S(dim), since a plan says where values lie, not "
                   "which sums are unfinished");
  for (int64_t axis = 0; axis < plan.mesh.ndim(); ++axis) {
    const layout::Placement& placement = placements[static_cast<size_t>(axis)];
    const int64_t size = plan.mesh.axis(axis).size;
    TESSERA_CHECK_AS(PlanError, !placement.is_on() || placement.coordinate() < size, "[plan] the ", what, " of \"",
                     entry.pattern, "\" is ", placement.str(), " on axis ", plan.mesh.axis(axis).name, " of mesh {",
                     plan.mesh.str(), "}; accepted: On(0) to On(", size - 1, ")");
  }
}

// Each of the parameter's other layouts is, axis by axis, as stored or the one other thing that it may be.
void verify_states(const Plan& plan, const ParameterPlan& entry) {
  const auto verify_state = [&](const char* what, const std::optional<layout::Placements>& state, const char* accepted,
                                const auto& may_be) {
    if (!state) {
      return;
    }
    verify_size(plan, entry, what, *state);
    const layout::Placements own = layout::normal_form(plan.mesh, *state);
    for (size_t axis = 0; axis < own.size(); ++axis) {
      const bool is_stored = own[axis] == entry.storage[axis] || own[axis].shares_dim(entry.storage[axis]);
      TESSERA_CHECK_AS(PlanError, is_stored || may_be(own[axis], axis), "[plan] the ", what, " of \"", entry.pattern,
                       "\" is ", layout::str(plan.mesh, own), ", and its storage ",
                       layout::str(plan.mesh, entry.storage), "; accepted on each axis: as in storage, or ", accepted);
    }
  };
  const layout::Placements compute = entry.compute.value_or(entry.storage);
  verify_state("compute", entry.compute, "R, where it is gathered",
               [](const layout::Placement& own, size_t) { return own.is_replicate(); });
  verify_state("kept", entry.kept, "as in compute",
               [&](const layout::Placement& own, size_t axis) { return own == compute[axis]; });
  verify_state("gradient", entry.gradient, "P, which is merged once a step",
               [](const layout::Placement& own, size_t) { return own.is_partial(); });
}

void verify_shape(const Plan& plan, const ParameterPlan& entry, const std::string& name,
                  const std::vector<int64_t>& sizes) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t last = layout::last_cut_dim(entry.storage);
  TESSERA_CHECK_AS(PlanError, last < ndim, "[plan] \"", entry.pattern, "\" asks for ",
                   layout::str(plan.mesh, entry.storage), " but parameter ", name, " of sizes [",
                   base::join(sizes, ", "), "] has no dim ", last, "; accepted: S(0) to S(", ndim - 1, ")");
  TESSERA_CHECK_AS(
      PlanError, layout::is_layout_of(plan.mesh, entry.storage, sizes), "[plan] \"", entry.pattern, "\" asks for ",
      layout::str(plan.mesh, entry.storage), " on parameter ", name, " of sizes [", base::join(sizes, ", "),
      "]; accepted: blocks and places that fit the sizes, and on a dim that several axes cut, distinct orders");
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.find('*') == std::string_view::npos) {
    return pattern == name;
  }
  // reached[i]: what was read of the pattern matches the first i characters of the name.
  std::vector<char> reached(name.size() + 1), next(name.size() + 1);
  reached[0] = true;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const bool is_star = pattern[at] == '*';
    const bool is_double = is_star && at + 1 < pattern.size() && pattern[at + 1] == '*';
    next[0] = is_star && reached[0];
    for (size_t i = 0; i < name.size(); ++i) {
      next[i + 1] =
          is_star ? reached[i + 1] || (next[i] && (is_double || name[i] != '.')) : reached[i] && name[i] == pattern[at];
    }
    std::swap(reached, next);
    at += is_double;
  }
  return reached[name.size()];
}

std::optional<int64_t> Plan::pipeline_axis() const {
  for (const std::string& name : layout::axes_of(mesh, layout::AxisRole::kPipeline)) {
    if (const int64_t axis = mesh.axis_index(name); mesh.axis(axis).size > 1) {
      return axis;
    }
  }
  return std::nullopt;
}

const ParameterPlan* Plan::find(std::string_view name) const {
  const auto find_called = [&](std::string_view own) -> const ParameterPlan* {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const ParameterPlan& entry) { return matches(entry.pattern, own); });
    return found == parameters.end() ? nullptr : &*found;
  };
  const ParameterPlan* entry = find_called(name);
  return entry ? entry : find_called(name_before_wrapping(name));
}

namespace {

// ... the module, by its own name or that which it had before other libraries wrapped it.
bool match_any(const std::vector<std::string>& patterns, std::string_view name) {
  const std::string before = name_before_wrapping(name);
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name) || matches(pattern, before); });
}

}  // namespace

bool Plan::recomputes(std::string_view module) const { return match_any(recompute, module); }

bool Plan::offloads(std::string_view module) const { return match_any(offload, module); }

bool Plan::always_walks(std::string_view module) const { return match_any(always_walked, module); }

bool Plan::merges_in_passes() const {
  const auto merges_over = [&](const ParameterPlan& entry, const std::string& axis) {
    return entry.gradient && !(*entry.gradient)[static_cast<size_t>(mesh.axis_index(axis))].is_partial();
  };
  return std::any_of(parameters.begin(), parameters.end(), [&](const ParameterPlan& entry) {
    return std::any_of(batch_axes.begin(), batch_axes.end(),
                       [&](const std::string& axis) { return merges_over(entry, axis); });
  });
}

std::string Plan::group_of(std::string_view name) const {
  const ParameterPlan* entry = find(name);
  if (!entry || entry->group.empty()) {
    return "";
  }
  return group_name(matches(entry->pattern, name) ? std::string(name) : name_before_wrapping(name), entry->group);
}

void Plan::verify_axes() const {
  const auto data_axes = layout::batch_axes_of(mesh);
  const auto cuts_batch = [&](const std::string& axis) {
    return std::find(data_axes.begin(), data_axes.end(), axis) != data_axes.end();
  };
  std::set<std::string> seen;
  for (const auto& axis : batch_axes) {
    TESSERA_CHECK_AS(PlanError, cuts_batch(axis), "[plan] batch axis \"", axis, "\" ",
                     mesh.find_axis(axis) ? "has another role" : "is not", " in mesh {", mesh.str(), "}",
                     base::did_you_mean(axis, data_axes), "; accepted: axes of the mesh that cut the batch",
                     data_axes.empty() ? ", of which it has none" : ": " + base::join(data_axes, ", "));
    TESSERA_CHECK_AS(PlanError, seen.insert(axis).second, "[plan] batch axis \"", axis,
                     "\" is named twice; accepted: once");
  }
}

void Plan::verify(const std::map<std::string, std::vector<int64_t>>& sizes) const {
  verify_axes();
  std::vector<std::string> names;
  std::map<std::string, const ParameterPlan*> entries;
  for (const auto& [name, unused] : sizes) {
    names.push_back(name);
    entries.emplace(name, find(name));
  }
  for (const auto& entry : parameters) {
    verify_placements(*this, entry, "storage", entry.storage);
    if (entry.input) {
      verify_placements(*this, entry, "input", *entry.input);
    }
    if (entry.output) {
      verify_placements(*this, entry, "output", *entry.output);
    }
    verify_states(*this, entry);
    bool is_used = false, is_taken = false;
    for (const auto& [name, shape] : sizes) {
      if (entries.at(name) == &entry) {
        is_used = true;
        verify_shape(*this, entry, name, shape);
      } else {
        is_taken = is_taken || matches(entry.pattern, name);
      }
    }
    TESSERA_CHECK_AS(
        PlanError, is_used, "[plan] \"", entry.pattern, "\" ",
        is_taken ? "has no effect: earlier entries match every parameter that it matches; move it up or remove it"
                 : "matches no parameter of the model" + base::did_you_mean(entry.pattern, names) +
                       "; accepted: a pattern over its names, such as " + (names.empty() ? "none" : names.front()));
  }
}

}  // namespace tessera::plan
