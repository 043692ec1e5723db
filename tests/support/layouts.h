// Every layout that a tensor can have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::support {

// Every choice on every axis that a tensor of these sizes can have, and both orders where two axes cut one dim.
inline std::vector<layout::Placements> every_layout_of(const layout::Mesh& mesh, c10::IntArrayRef sizes,
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
    const auto add_if_valid = [&] {
      if (layout::is_layout_of(mesh, list, sizes)) {
        result.push_back(list);
      }
    };
    add_if_valid();
    if (list.size() == 2 && list[0].is_shard() && list[1].is_shard(list[0].dim)) {
      list[0].order = 1;
      list[1].order = 0;
      add_if_valid();
    }
  }
  return result;
}

// Of a dim of so many elements: `first` at the first rank, the others at the last, none between; for axes of 2 and of 3
// ranks.
inline std::vector<layout::Placement> ragged_cuts(int64_t dim, int64_t size, int64_t first) {
  first = std::min(first, size);
  return {layout::RaggedShard({dim}, {first, size - first}), layout::RaggedShard({dim}, {first, 0, size - first})};
}

// Every layout of a tensor of whatever sizes, where no choice is ragged.
inline std::vector<layout::Placements> every_layout(const layout::Mesh& mesh, int64_t ndim,
                                                    const std::vector<layout::Placement>& choices) {
  return every_layout_of(mesh, std::vector<int64_t>(ndim), choices);
}

}  // namespace tessera::support
