#include "tessera/layout/cut.h"

#include <algorithm>

namespace tessera::layout {

Cut::Cut(int64_t size, int64_t parts, int64_t unit) : size_(size), parts_(parts) {
  const int64_t units = (size + unit - 1) / unit;
  step_ = (units + parts - 1) / parts * unit;
}

Range Cut::operator[](int64_t index) const {
  return {std::min(index * step_, size_), std::min((index + 1) * step_, size_)};
}

bool Cut::operator==(const Cut& other) const {
  return size_ == other.size_ && parts_ == other.parts_ && most() == other.most();
}

std::vector<Range> in_blocks(const Range& first, int64_t size, int64_t blocks) {
  std::vector<Range> runs;
  const int64_t step = size / blocks;
  for (int64_t i = 0; i < blocks; ++i) {
    runs.push_back({first.begin + i * step, first.end + i * step});
  }
  return runs;
}

namespace {

bool same_from(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b, size_t level) {
  if (level == a.size() || size == 0) {
    return true;
  }
  const Cut first(size, a[level].parts, a[level].unit);
  return first == Cut(size, b[level].parts, b[level].unit) && same_from(first.most(), a, b, level + 1) &&
         same_from(first.rest(), a, b, level + 1);
}

}  // namespace

bool same_places(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b) {
  return same_from(size, a, b, 0);
}

}  // namespace tessera::layout
