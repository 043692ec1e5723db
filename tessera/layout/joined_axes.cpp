#include "tessera/layout/joined_axes.h"

#include "tessera/base/text.h"

namespace tessera::layout {

JoinedAxes join_axes(const Mesh& mesh, const std::vector<int64_t>& axes) {
  if (axes.size() == 1) {
    return {mesh, axes.front(), mesh.axis(axes.front()).name};
  }
  std::vector<std::string> names;
  for (const int64_t axis : axes) {
    names.push_back(mesh.axis(axis).name);
  }
  std::string name = base::join(names, "_");
  while (mesh.find_axis(name)) {
    name += "_";
  }
  const Mesh joined = mesh.flatten(names, name);
  return {joined, joined.axis_index(name), base::join(names, ",")};
}

int64_t ranks_along(const Mesh& mesh, const std::vector<int64_t>& axes) {
  int64_t ranks = 1;
  for (const int64_t axis : axes) {
    ranks *= mesh.axis(axis).size;
  }
  return ranks;
}

}  // namespace tessera::layout
