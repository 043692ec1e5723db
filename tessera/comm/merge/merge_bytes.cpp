#include "tessera/comm/merge/merge_bytes.h"

namespace tessera::comm {

int64_t bytes_sent(const Merge& merge, int64_t member) {
  const auto members = static_cast<int64_t>(merge.plan.nodes().size()),
             nodes = static_cast<int64_t>(merge.plan.nodes()[member].size());
  const auto closed = static_cast<int64_t>(merge.plan.closed().size()),
             item = static_cast<int64_t>(merge.options.dtype().itemsize());
  const int64_t numel = c10::multiply_integers(merge.sizes);
  if (!merge.scatter) {
    const int64_t own = layout::cut(numel, members, member).size();
    return item * (nodes * (numel - own) + closed * own * (members - 1));
  }
  int64_t of_others = 0;
  for (int64_t i = 0; i < members; ++i) {
    of_others += i == member ? 0 : c10::multiply_integers(merge.sizes_at(i));
  }
  return item * nodes * of_others;
}

// Their number, and two ends of each.
int64_t bytes_of_nodes(const layout::Node& root) {
  return (1 + 2 * root.size()) * static_cast<int64_t>(sizeof(int64_t));
}

}  // namespace tessera::comm
