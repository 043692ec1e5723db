// Rows dealt to threads. Internal to this floor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

// Elements that a thread takes at least: less is not worth waking one.
constexpr int64_t kElementGrain = 16384;

// body(part, begin) for ranges of rows [begin, begin + part.rows) that together are all.
template <typename Body>
void for_row_ranges(Shape shape, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, shape.n));
  parallel_for(shape.rows, grain, [&](int64_t begin, int64_t end) { body(Shape{end - begin, shape.n}, begin); });
}

}  // namespace tessera::kernels
