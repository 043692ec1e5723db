// Rows in memory, as the row kernels take them. No tensor, no ownership.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// `rows` rows of `n` elements each; either may be zero.
struct Shape {
  int64_t rows = 0;
  int64_t n = 0;
};

// Rows of neighbouring elements that begin `stride` elements apart; any alignment. Rows<const T> is read only.
// A stride of zero reads one row again and again.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  T* row(int64_t i) const { return data + i * stride; }
  Rows from(int64_t i) const { return {row(i), stride}; }
};

}  // namespace tessera::kernels
