// A plan in the making: what styles of parallelism read of a model, and where they write.
//
// A style is a file styles/<name>.cpp, which defines
//
//   void plan_<name>(Draft& draft);
//
// CMakeLists.txt lists the names in the order in which the styles are asked. A style looks at the mesh and the options,
// and writes on axes that are its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/layout/axis_role.h"
#include "tessera/plan/module_tree.h"
#include "tessera/plan/options.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/roles.h"
#include "tessera/plan/stages.h"

namespace tessera::plan {

class Draft {
 public:
  // The options must not contradict each other. `model` must outlive the draft.
  Draft(const ModuleTree& model, PlanOptions options, layout::Mesh mesh);

  const PlanOptions options;
  const ModelRoles roles;
  Plan plan;  // its mesh, its batch axes; not yet its entries

  // The entry of the parameter of this dotted name: whole on every axis, unless a style said otherwise.
  ParameterPlan& entry(const std::string& name);

  // All parameters of the model, each once.
  std::vector<NamedTensor> parameters() const;

  // The model in the order in which it runs.
  std::vector<ModelPart> parts() const;

  // Whether the options have the parameter whole on axes that shard, as the model has it.
  bool is_whole(const NamedTensor& parameter) const;
  // What the options want of it.
  struct Wanted {
    std::string group;  // the module of the options' group that it is in, `layers.3`; empty if it is in none
    Sharding sharding;
    Precision precision;
  };
  Wanted wanted_of(const NamedTensor& parameter) const;

  // A remark for people. The same about every layer is made once.
  void note(const std::string& text);

  // The last axis of the mesh that has this role, if it has more than one rank.
  std::optional<int64_t> wide_axis(layout::AxisRole role) const;
  // All of them, slowest first.
  std::vector<int64_t> wide_axes(layout::AxisRole role) const;

  // The plan, with the entries in the order of roles.
  Plan finish();

 private:
  const ModuleTree& model_;
  std::map<std::string, ParameterPlan> entries_;
};

using Style = void (*)(Draft& draft);

// All of them, in their order.
std::vector<Style> styles();

// `layers.*.mlp.up.weight`: the name with `*` for its numbers.
std::string general(const std::string& name);

}  // namespace tessera::plan
