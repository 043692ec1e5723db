#include "tessera/dtensor/exact/norm_levels.h"

#include <algorithm>

#include "tessera/kernels/rows/clip_norm.h"
#include "tessera/sums/closed_nodes.h"

namespace tessera::dtensor {

NormLevel columns_of(c10::IntArrayRef sizes) {
  const bool is_row = sizes.size() == 1;
  const int64_t size = is_row ? sizes[0] : sizes.size() < 2 ? 1 : sizes[1];
  return {is_row ? 0 : 1, size, sizes.size() < 2 ? 1 : c10::multiply_integers(sizes.slice(2)), kernels::kClipLeaves};
}

NormLevel rows_of(c10::IntArrayRef sizes) {
  const int64_t rows = sizes.size() < 2 ? 1 : sizes[0];
  return {sizes.size() < 2 ? -1 : 0, rows, 1, std::max<int64_t>(rows, 1)};
}

std::vector<sums::Node> nodes_of(const NormLevel& level, const std::vector<layout::Range>& runs) {
  std::vector<sums::Node> nodes;
  for (const layout::Range& run : runs) {
    const auto own = level.cover(run);
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  return sums::closed_nodes(nodes, level.root());
}

}  // namespace tessera::dtensor
