#include "tessera/kernels/rows/rows.h"

#include "tessera/kernels/base/float_environment.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/base/tree_sum.h"
#include "tessera/kernels/rows/row_ranges.h"

namespace tessera::kernels {

template <typename T>
void row_sum(Shape shape, int64_t leaf, Rows<const T> x, T* out) {
  const auto run = table<T>().row_sum;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, leaf, x.from(begin), out + begin); });
}

template <typename T>
void row_mean(Shape shape, int64_t leaf, Rows<const T> x, T* out) {
  const auto run = table<T>().row_sum;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    run(part, leaf, x.from(begin), out + begin);
    for (int64_t r = begin; r < begin + part.rows; ++r) {
      out[r] /= static_cast<T>(shape.n);
    }
  });
}

template <typename T>
void row_squares(Shape shape, int64_t leaf, Rows<const T> x, T* out) {
  const auto run = table<T>().row_squares;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, leaf, x.from(begin), out + begin); });
}

template <typename T>
T tree_sum(int64_t count, const T* values) {
  const FloatEnvironment environment;
  TreeSum<T> tree;
  for (int64_t i = 0; i < count; ++i) {
    tree.add(values[i]);
  }
  return tree.root();
}

template <typename T>
void row_max(Shape shape, Rows<const T> x, T* out) {
  const auto run = table<T>().row_max;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, x.from(begin), out + begin); });
}

template <typename T>
void row_exp_sum(Shape shape, int64_t leaf, Rows<const T> x, const T* max, T* out) {
  const auto run = table<T>().row_exp_sum;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, leaf, x.from(begin), max + begin, out + begin); });
}

template <typename T>
void softmax(Shape shape, Rows<const T> x, Rows<T> y) {
  const auto run = table<T>().softmax;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, x.from(begin), y.from(begin)); });
}

template <typename T>
void log_softmax(Shape shape, Rows<const T> x, Rows<T> y) {
  const auto run = table<T>().log_softmax;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, x.from(begin), y.from(begin)); });
}

template <typename T>
void softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx) {
  const auto run = table<T>().softmax_backward;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, grad.from(begin), y.from(begin), dx.from(begin)); });
}

template <typename T>
void log_softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx) {
  const auto run = table<T>().log_softmax_backward;
  for_row_ranges(shape, [=](Shape part, int64_t begin) { run(part, grad.from(begin), y.from(begin), dx.from(begin)); });
}

#define TESSERA_INSTANTIATE(T)                                                  \
  template void row_sum(Shape, int64_t, Rows<const T>, T*);                     \
  template void row_mean(Shape, int64_t, Rows<const T>, T*);                    \
  template void row_squares(Shape, int64_t, Rows<const T>, T*);                 \
  template T tree_sum(int64_t, const T*);                                       \
  template void row_max(Shape, Rows<const T>, T*);                              \
  template void row_exp_sum(Shape, int64_t, Rows<const T>, const T*, T*);       \
  template void softmax(Shape, Rows<const T>, Rows<T>);                         \
  template void log_softmax(Shape, Rows<const T>, Rows<T>);                     \
  template void softmax_backward(Shape, Rows<const T>, Rows<const T>, Rows<T>); \
  template void log_softmax_backward(Shape, Rows<const T>, Rows<const T>, Rows<T>);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
