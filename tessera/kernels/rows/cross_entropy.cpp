#include "tessera/kernels/rows/cross_entropy.h"

#include <algorithm>

#include "tessera/kernels/base/table.h"
#include "tessera/kernels/rows/row_ranges.h"

namespace tessera::kernels {
namespace {

bool is_in_part(int64_t target, int64_t first, int64_t n) { return target >= first && target < first + n; }

template <typename T>
void loss_of_rows(int64_t rows, const T* max, const T* sum, const T* picked, const int64_t* target, T* loss) {
  table<T>().log(rows, sum, loss);
  for (int64_t r = 0; r < rows; ++r) {
    loss[r] = target[r] < 0 ? T(0) : loss[r] - (picked[r] - max[r]);
  }
}

}  // namespace

template <typename T>
void pick_targets(Shape shape, Rows<const T> logits, const int64_t* target, int64_t first, T* out) {
  parallel_for(shape.rows, kElementGrain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      out[r] = target[r] >= 0 && is_in_part(target[r], first, shape.n) ? logits.row(r)[target[r] - first] + T(0) : T(0);
    }
  });
}

template <typename T>
void cross_entropy_loss(int64_t rows, const T* max, const T* sum, const T* picked, const int64_t* target, T* loss) {
  parallel_for(rows, kElementGrain, [=](int64_t begin, int64_t end) {
    loss_of_rows(end - begin, max + begin, sum + begin, picked + begin, target + begin, loss + begin);
  });
}

template <typename T>
void cross_entropy(Shape shape, int64_t leaf, Rows<const T> logits, const int64_t* target, T* loss, T* max, T* sum) {
  const Table<T>& t = table<T>();
  for_row_ranges(shape, [=, &t](Shape part, int64_t begin) {
    constexpr int64_t kBlock = 64;
    T picked[kBlock];
    for (int64_t r = begin; r < begin + part.rows; r += kBlock) {
      const int64_t rows = std::min(kBlock, begin + part.rows - r);
      for (int64_t i = 0; i < rows; ++i) {  // row by row, so that the second pass finds it in the cache
        const Rows<const T> row = logits.from(r + i);
        t.row_max({1, shape.n}, row, max + r + i);
        t.row_exp_sum({1, shape.n}, leaf, row, max + r + i, sum + r + i);
        picked[i] = target[r + i] < 0 ? T(0) : row.data[target[r + i]] + T(0);
      }
      loss_of_rows(rows, max + r, sum + r, picked, target + r, loss + r);
    }
  });
}

template <typename T>
void cross_entropy_backward(Shape shape, Rows<const T> logits, const T* max, const T* sum, const int64_t* target,
                            int64_t first, const T* grad, Rows<T> dx) {
  const auto run = table<T>().cross_entropy_backward;
  for_row_ranges(shape, [=](Shape part, int64_t begin) {
    for (int64_t r = begin; r < begin + part.rows; ++r) {
      if (target[r] < 0) {
        std::fill_n(dx.row(r), shape.n, T(0));
        continue;
      }
      run({1, shape.n}, logits.from(r), max + r, sum + r, grad + r, dx.from(r));
      if (is_in_part(target[r], first, shape.n)) {
        dx.row(r)[target[r] - first] -= grad[r];
      }
    }
  });
}

#define TESSERA_INSTANTIATE(T)                                                                                      \
  template void pick_targets(Shape, Rows<const T>, const int64_t*, int64_t, T*);                                    \
  template void cross_entropy_loss(int64_t, const T*, const T*, const T*, const int64_t*, T*);                      \
  template void cross_entropy(Shape, int64_t, Rows<const T>, const int64_t*, T*, T*, T*);                           \
  template void cross_entropy_backward(Shape, Rows<const T>, const T*, const T*, const int64_t*, int64_t, const T*, \
                                       Rows<T>);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
