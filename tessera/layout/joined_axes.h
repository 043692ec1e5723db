// Several axes of a mesh taken as one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/mesh.h"

namespace tessera::layout {

// The ranks that differ along these axes only, in one line: `axes` of a mesh are `axis` of another one over the same
// ranks, the first of them slowest.
struct JoinedAxes {
  Mesh mesh;
  int64_t axis = 0;
  std::string name;  // for messages and the ledger: `dp,tp`
};

// Throws if there is no axis, or one twice. Of one axis: the mesh itself.
JoinedAxes join_axes(const Mesh& mesh, const std::vector<int64_t>& axes);

// How many ranks such a line has.
int64_t ranks_along(const Mesh& mesh, const std::vector<int64_t>& axes);

}  // namespace tessera::layout
