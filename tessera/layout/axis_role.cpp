#include "tessera/layout/axis_role.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::layout {
namespace {

struct NamedRole {
  std::string_view name;
  std::optional<AxisRole> role;
  std::string_view what;  // of a name without a role: why it has none
};

// The one list of names.
constexpr NamedRole kRoles[] = {
    {"dp", AxisRole::kData, "cuts the batch"},
    {"dp_replicate", AxisRole::kData, "the same as dp"},
    {"fsdp", AxisRole::kSharded, "cuts the batch and what is kept of each parameter"},
    {"dp_shard", AxisRole::kSharded, "the same as fsdp"},
    {"tp", AxisRole::kTensor, "cuts the model"},
    {"pp", AxisRole::kPipeline, "cuts the model into stages"},
    {"cp", {}, "context parallelism is not there yet"},
    {"ep", {}, "expert parallelism is not there yet"},
    {"sp", {}, "sequence parallelism is no axis: the plan is asked for it (sequence_parallel), and works on tp"},
};

const NamedRole* find_role(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kRoles), std::end(kRoles), [&](const NamedRole& each) { return each.name == name; });
  return found == std::end(kRoles) ? nullptr : found;
}

std::vector<std::string> names_with_roles() {
  std::vector<std::string> names;
  for (const auto& each : kRoles) {
    if (each.role) {
      names.emplace_back(each.name);
    }
  }
  return names;
}

// `dp (cuts the batch), ...`
std::string accepted() {
  return base::join(names_with_roles(), ", ", [](std::ostream& out, const std::string& name) {
    out << name << " (" << find_role(name)->what << ")";
  });
}

}  // namespace

AxisRole role_of(const Mesh& mesh, int64_t axis) {
  const std::string& name = mesh.axis(axis).name;
  const NamedRole* found = find_role(name);
  const std::string why =
      found ? ": " + std::string(found->what) : " has no role" + base::did_you_mean(name, names_with_roles());
  TESSERA_CHECK_AS(PlanError, found && found->role, "[mesh] the axis \"", name, "\" of mesh {", mesh.str(), "}", why,
                   "; accepted: ", accepted());
  return *found->role;
}

void verify_roles(const Mesh& mesh) {
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    role_of(mesh, axis);
  }
}

std::vector<std::string> axes_of(const Mesh& mesh, AxisRole role) {
  verify_roles(mesh);
  std::vector<std::string> names;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (role_of(mesh, axis) == role) {
      names.push_back(mesh.axis(axis).name);
    }
  }
  return names;
}

int64_t ranks_along(const Mesh& mesh, AxisRole role) {
  int64_t size = 1;
  for (const std::string& name : axes_of(mesh, role)) {
    size *= mesh.axis(mesh.axis_index(name)).size;
  }
  return size;
}

std::vector<std::string> batch_axes_of(const Mesh& mesh) {
  std::vector<std::string> names = axes_of(mesh, AxisRole::kData);
  const std::vector<std::string> sharded = axes_of(mesh, AxisRole::kSharded);
  names.insert(names.end(), sharded.begin(), sharded.end());
  return names;
}

Mesh with_near_ranks(const Mesh& mesh, int64_t near) {
  const std::vector<std::string> sharded = axes_of(mesh, AxisRole::kSharded);
  const auto size_of = [&](const std::string& name) { return mesh.axis(mesh.axis_index(name)).size; };
  if (sharded.size() > 1 && size_of(sharded.back()) == near) {
    return mesh;
  }
  TESSERA_CHECK_AS(PlanError,
                   sharded.size() == 1 && near > 1 && size_of(sharded[0]) > near && size_of(sharded[0]) % near == 0,
                   "[mesh] groups of ", near, " near ranks on mesh ", mesh.str(),
                   "; accepted: a number above 1 that divides the axis which shards into several groups");
  std::vector<Axis> axes;
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == sharded[0]) {
      axes.push_back({"dp_shard", axis.size / near});
      axes.push_back({"fsdp", near});
    } else {
      axes.push_back(axis);
    }
  }
  return Mesh(axes, mesh.ranks());
}

std::string name_of(AxisRole role) {
  const auto* found =
      std::find_if(std::begin(kRoles), std::end(kRoles), [&](const NamedRole& each) { return each.role == role; });
  return std::string(found->name);
}

}  // namespace tessera::layout
