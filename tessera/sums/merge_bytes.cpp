#include "tessera/sums/merge_bytes.h"

#include <c10/util/accumulate.h>

namespace tessera::sums {

std::vector<int64_t> sizes_at(int64_t member, c10::IntArrayRef sizes, const std::optional<Scatter>& scatter) {
  std::vector<int64_t> result = sizes.vec();
  if (scatter) {
    result[scatter->dim] = scatter->parts[member].size();
  }
  return result;
}

int64_t bytes_sent(const MergePlan& plan, int64_t member, c10::IntArrayRef sizes, int64_t item,
                   const std::optional<Scatter>& scatter) {
  const auto members = static_cast<int64_t>(plan.nodes().size()),
             nodes = static_cast<int64_t>(plan.nodes()[member].size()),
             closed = static_cast<int64_t>(plan.closed().size());
  if (!scatter) {
    const int64_t numel = c10::multiply_integers(sizes), own = layout::cut(numel, members, member).size();
    return item * (nodes * (numel - own) + closed * own * (members - 1));
  }
  int64_t of_others = 0;
  for (int64_t i = 0; i < members; ++i) {
    of_others += i == member ? 0 : c10::multiply_integers(sizes_at(i, sizes, scatter));
  }
  return item * nodes * of_others;
}

// Their number, and two ends of each.
int64_t bytes_of_nodes(const Node& root) { return (1 + 2 * root.size()) * static_cast<int64_t>(sizeof(int64_t)); }

}  // namespace tessera::sums
