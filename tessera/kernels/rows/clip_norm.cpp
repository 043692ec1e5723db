#include "tessera/kernels/rows/clip_norm.h"

#include <algorithm>
#include <vector>

#include "tessera/kernels/base/float_environment.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::kernels {

int64_t clip_leaf(int64_t columns) { return std::max<int64_t>(1, (columns + kClipLeaves - 1) / kClipLeaves); }

template <typename T>
void clip_row_squares(Shape shape, int64_t columns, Rows<const T> x, T* out) {
  row_squares<T>(shape, clip_leaf(columns), x, out);
}

template <typename T>
T clip_squares(Shape shape, Rows<const T> x) {
  std::vector<T> rows(static_cast<size_t>(shape.rows));
  clip_row_squares<T>(shape, shape.n, x, rows.data());
  return tree_sum<T>(shape.rows, rows.data());
}

template <typename T>
T clip_factor(T norm, double max_norm) {
  const FloatEnvironment environment;
  const T factor = static_cast<T>(max_norm) / (norm + T(1e-6));
  return factor > T(1) ? T(1) : factor;
}

template void clip_row_squares(Shape, int64_t, Rows<const float>, float*);
template void clip_row_squares(Shape, int64_t, Rows<const double>, double*);
template float clip_squares(Shape, Rows<const float>);
template double clip_squares(Shape, Rows<const double>);
template float clip_factor(float, double);
template double clip_factor(double, double);

}  // namespace tessera::kernels
