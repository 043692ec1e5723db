// Every layout that a tensor can have.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::support {

// Every choice on every axis that a tensor of `ndim` dims can have, and both orders where two axes cut one dim.
inline std::vector<layout::Placements> every_layout(const layout::Mesh& mesh, int64_t ndim,
                                                    const std::vector<layout::Placement>& choices) {
  std::vector<layout::Placements> lists = {{}};
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    std::vector<layout::Placements> longer;
    for (const layout::Placements& list : lists) {
      for (const layout::Placement& choice : choices) {
        longer.push_back(list);
        longer.back().push_back(choice);
      }
    }
    lists = std::move(longer);
  }
  std::vector<layout::Placements> result;
  for (layout::Placements& list : lists) {
    if (!layout::is_valid(mesh, list, ndim)) {
      continue;
    }
    result.push_back(list);
    if (list.size() == 2 && list[0].is_shard() && list[1].is_shard(list[0].dim)) {
      list[0].order = 1;
      list[1].order = 0;
      result.push_back(list);
    }
  }
  return result;
}

}  // namespace tessera::support
