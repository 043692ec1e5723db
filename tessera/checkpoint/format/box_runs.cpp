#include "tessera/checkpoint/format/box_runs.h"

namespace tessera::checkpoint {
namespace {

// Appends those of the dims from `dim` on, behind what is fixed of the dims before.
void append_runs(const Box& box, size_t dim, int64_t begin, int64_t end, Box& fixed, std::vector<Box>& all) {
  if (begin >= end) {
    return;
  }
  if (dim == box.size()) {
    all.push_back(fixed);
    return;
  }
  int64_t inner = 1;
  for (size_t d = dim + 1; d < box.size(); ++d) {
    inner *= box[d].size();
  }
  const int64_t first = begin / inner, last = (end - 1) / inner;  // rows of this dim
  const auto row = [&](int64_t index, int64_t from, int64_t to) {
    fixed.push_back({box[dim].begin + index, box[dim].begin + index + 1});
    append_runs(box, dim + 1, from, to, fixed, all);
    fixed.pop_back();
  };
  if (first == last && !(begin % inner == 0 && end - begin == inner)) {
    return row(first, begin - first * inner, end - first * inner);
  }
  const int64_t whole_from = begin % inner == 0 ? first : first + 1, whole_to = end % inner == 0 ? last + 1 : last;
  if (whole_from > first) {
    row(first, begin - first * inner, inner);
  }
  if (whole_from < whole_to) {
    Box rows = fixed;
    rows.push_back({box[dim].begin + whole_from, box[dim].begin + whole_to});
    rows.insert(rows.end(), box.begin() + static_cast<int64_t>(dim) + 1, box.end());
    all.push_back(std::move(rows));
  }
  if (whole_to <= last) {
    row(last, 0, end - last * inner);
  }
}

}  // namespace

Box everything(c10::IntArrayRef sizes) {
  Box box;
  for (const auto size : sizes) {
    box.push_back({0, size});
  }
  return box;
}

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  std::vector<Box> all;
  Box fixed;
  append_runs(box, 0, begin, end, fixed, all);
  return all;
}

}  // namespace tessera::checkpoint
