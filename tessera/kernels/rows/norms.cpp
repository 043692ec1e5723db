#include "tessera/kernels/rows/norms.h"

#include "tessera/kernels/base/table.h"
#include "tessera/kernels/rows/row_ranges.h"

namespace tessera::kernels {
namespace {

// body(columns, row, begin, width) for every sample in order, for ranges of columns dealt to threads.
template <typename Body>
void for_samples(Samples samples, int64_t n, const Body& body) {
  const int64_t grain = std::max<int64_t>(64, kElementGrain / std::max<int64_t>(1, samples.samples * samples.tokens));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t s = 0; s < samples.samples; ++s) {
      body(Shape{samples.tokens, end - begin}, s * samples.tokens, begin);
    }
  });
}

template <typename T>
Rows<T> window(Rows<T> rows, int64_t row, int64_t column) {
  return {rows.row(row) + column, rows.stride};
}

}  // namespace

template <typename T>
void rms_norm(Shape shape, Rows<const T> x, const T* weight, double eps, Rows<T> y, T* rstd) {
  const auto run = table<T>().rms_norm;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    run(part, x.from(begin), weight, static_cast<T>(eps), y.from(begin), rstd + begin);
  });
}

template <typename T>
void rms_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* rstd, Rows<T> dx) {
  const auto run = table<T>().rms_norm_backward;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    run(part, grad.from(begin), x.from(begin), weight, rstd + begin, dx.from(begin));
  });
}

template <typename T>
void add_rms_norm_weight(Samples samples, int64_t n, Rows<const T> grad, Rows<const T> x, const T* rstd, T* total) {
  const auto run = table<T>().rms_norm_weight;
  for_samples(samples, n, [=](Shape tokens, int64_t row, int64_t column) {
    run(tokens, window(grad, row, column), window(x, row, column), rstd + row, total + column);
  });
}

template <typename T>
void layer_norm(Shape shape, Rows<const T> x, const T* weight, const T* bias, double eps, Rows<T> y, T* mean, T* rstd) {
  const auto run = table<T>().layer_norm;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    run(part, x.from(begin), weight, bias, static_cast<T>(eps), y.from(begin), mean + begin, rstd + begin);
  });
}

template <typename T>
void layer_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* mean,
                         const T* rstd, Rows<T> dx) {
  const auto run = table<T>().layer_norm_backward;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    run(part, grad.from(begin), x.from(begin), weight, mean + begin, rstd + begin, dx.from(begin));
  });
}

template <typename T>
void add_layer_norm_weight(Samples samples, int64_t n, Rows<const T> grad, Rows<const T> x, const T* mean,
                           const T* rstd, T* total) {
  const auto run = table<T>().layer_norm_weight;
  for_samples(samples, n, [=](Shape tokens, int64_t row, int64_t column) {
    run(tokens, window(grad, row, column), window(x, row, column), mean + row, rstd + row, total + column);
  });
}

template <typename T>
void add_column_sum(Samples samples, int64_t n, Rows<const T> grad, T* total) {
  const auto run = table<T>().column_sum;
  for_samples(samples, n, [=](Shape tokens, int64_t row, int64_t column) {
    run(tokens, window(grad, row, column), total + column);
  });
}

#define TESSERA_INSTANTIATE(T)                                                                                   \
  template void rms_norm(Shape, Rows<const T>, const T*, double, Rows<T>, T*);                                   \
  template void rms_norm_backward(Shape, Rows<const T>, Rows<const T>, const T*, const T*, Rows<T>);             \
  template void add_rms_norm_weight(Samples, int64_t, Rows<const T>, Rows<const T>, const T*, T*);               \
  template void layer_norm(Shape, Rows<const T>, const T*, const T*, double, Rows<T>, T*, T*);                   \
  template void layer_norm_backward(Shape, Rows<const T>, Rows<const T>, const T*, const T*, const T*, Rows<T>); \
  template void add_layer_norm_weight(Samples, int64_t, Rows<const T>, Rows<const T>, const T*, const T*, T*);   \
  template void add_column_sum(Samples, int64_t, Rows<const T>, T*);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
