// The runs of memory that a box of elements is, within boxes that hold it.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/reshard/holdings.h"

namespace tessera::checkpoint {

using reshard::Box;

// The box of all elements.
inline Box everything(c10::IntArrayRef sizes) {
  Box box;
  for (const auto size : sizes) {
    box.push_back({0, size});
  }
  return box;
}

// Calls visit(at, to, elements) for the runs of elements of `overlap` that lie one behind the other in both boxes: `at`
// and `to` are where they begin in `from` and in `into`, in elements of row-major order. In that order.
template <typename Visit>
void for_each_run(const Box& overlap, const Box& from, const Box& into, Visit visit) {
  size_t inner = overlap.size();  // dims from here on are whole in both
  int64_t elements = 1;
  while (inner > 0 && overlap[inner - 1] == from[inner - 1] && overlap[inner - 1] == into[inner - 1]) {
    elements *= overlap[--inner].size();
  }
  if (inner > 0) {
    elements *= overlap[--inner].size();
  }
  std::vector<int64_t> index;
  for (const auto& run : overlap) {
    index.push_back(run.begin);
  }
  const auto place_in = [&](const Box& box) {
    int64_t place = 0;
    for (size_t d = 0; d < box.size(); ++d) {
      place = place * box[d].size() + index[d] - box[d].begin;
    }
    return place;
  };
  while (true) {
    visit(place_in(from), place_in(into), elements);
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == overlap[d - 1].end) {
      index[d - 1] = overlap[d - 1].begin;
      --d;
    }
    if (d == 0) {
      return;
    }
  }
}

}  // namespace tessera::checkpoint
