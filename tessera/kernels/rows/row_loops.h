// Sums, softmax and cross entropy over rows on one instruction set. For table_<isa>.cpp alone.
#pragma once

#include "tessera/kernels/base/lanes.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/base/vector_math.h"

namespace tessera::kernels {
namespace {

// out[r] = the sum of step(lane, values) over row r; four rows side by side, to hide the latency of a chain.
template <typename T, typename Step>
void sum_rows(Shape shape, int64_t leaf, Rows<const T> x, T* out, const Step& step) {
  int64_t r = 0;
  for (; r + 4 <= shape.rows; r += 4) {
    const T* rows = x.row(r);
    const Four<T> sums = sum_leaves(shape.n, leaf, [&](int64_t begin, int64_t end) {
      Lanes<T> lanes[4];
      run_lanes<T>(end - begin, lanes, [&](int i, Pack<T> lane, int64_t at, auto access) {
        return step(lane, access.load(rows + i * x.stride + begin + at));
      });
      return add_four(lanes);
    });
    for (int i = 0; i < 4; ++i) {
      out[r + i] = sums.at[i];
    }
  }
  for (; r < shape.rows; ++r) {
    const T* row = x.row(r);
    out[r] = sum_leaves(shape.n, leaf, [&](int64_t begin, int64_t end) {
      return sum_lanes<T>(end - begin, [&](Pack<T> lane, int64_t at, auto access) {
        return step(lane, access.load(row + begin + at));
      });
    });
  }
}

template <typename T>
void row_sum(Shape shape, int64_t leaf, Rows<const T> x, T* out) {
  sum_rows<T>(shape, leaf, x, out, [](Pack<T> lane, Pack<T> value) { return lane + value; });
}

template <typename T>
void row_squares(Shape shape, int64_t leaf, Rows<const T> x, T* out) {
  sum_rows<T>(shape, leaf, x, out, [](Pack<T> lane, Pack<T> value) { return fma(value, value, lane); });
}

// The largest of a row that is not NaN, never -0; minus infinity for none.
template <typename T>
T max_of_row(int64_t n, const T* x) {
  Lanes<T> lanes[2];
  for (Lanes<T>& half : lanes) {
    for (Pack<T>& part : half.part) {
      part = splat<T>(-__builtin_inf());
    }
  }
  const int64_t half = n / (2 * kLanes) * kLanes;
  run_lanes<T>(half, lanes,
               [&](int h, Pack<T> lane, int64_t at, auto access) { return max(access.load(x + h * half + at), lane); });
  Lanes<T> rest[1] = {lanes[0]};
  run_lanes<T>(n - 2 * half, rest,
               [&](int, Pack<T> lane, int64_t at, auto access) { return max(access.load(x + 2 * half + at), lane); });
  for (int p = 0; p < kParts<T>; ++p) {
    rest[0].part[p] = max(rest[0].part[p], lanes[1].part[p]);
  }
  return max_of_lanes(rest[0]) + T(0);
}

template <typename T>
void row_max(Shape shape, Rows<const T> x, T* out) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    out[r] = max_of_row(shape.n, x.row(r));
  }
}

template <typename T>
T exp_sum_of_leaf(int64_t n, const T* x, T max) {
  return sum_lanes<T>(
      n, [=](Pack<T> lane, int64_t at, auto access) { return lane + VectorMath<T>::exp(access.load(x + at) - max); });
}

template <typename T>
void row_exp_sum(Shape shape, int64_t leaf, Rows<const T> x, const T* max, T* out) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* row = x.row(r);
    out[r] = sum_leaves(shape.n, leaf,
                        [&](int64_t begin, int64_t end) { return exp_sum_of_leaf(end - begin, row + begin, max[r]); });
  }
}

template <typename T>
void softmax(Shape shape, Rows<const T> x, Rows<T> y) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* in = x.row(r);
    T* out = y.row(r);
    const T max = max_of_row(shape.n, in);
    const T sum = sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) {
      const Pack<T> e = VectorMath<T>::exp(access.load(in + at) - max);
      access.store(out + at, e);
      return lane + e;
    });
    for_each_pack<T>(shape.n, [=](int64_t at, auto access) { access.store(out + at, access.load(out + at) / sum); });
  }
}

template <typename T>
void log_softmax(Shape shape, Rows<const T> x, Rows<T> y) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* in = x.row(r);
    T* out = y.row(r);
    const T max = max_of_row(shape.n, in);
    const T log_sum = VectorMath<T>::log(splat(exp_sum_of_leaf(shape.n, in, max)))[0];
    for_each_pack<T>(shape.n,
                     [=](int64_t at, auto access) { access.store(out + at, (access.load(in + at) - max) - log_sum); });
  }
}

template <typename T>
void softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* g = grad.row(r);
    const T* p = y.row(r);
    T* out = dx.row(r);
    const T sum = sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) {
      return fma(access.load(g + at), access.load(p + at), lane);
    });
    for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
      access.store(out + at, access.load(p + at) * (access.load(g + at) - sum));
    });
  }
}

template <typename T>
void log_softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* g = grad.row(r);
    const T* logs = y.row(r);
    T* out = dx.row(r);
    const T sum =
        sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) { return lane + access.load(g + at); });
    for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
      access.store(out + at, fma(VectorMath<T>::exp(access.load(logs + at)), splat(-sum), access.load(g + at)));
    });
  }
}

template <typename T>
void cross_entropy_backward(Shape shape, Rows<const T> x, const T* max, const T* sum, const T* grad, Rows<T> dx) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* in = x.row(r);
    T* out = dx.row(r);
    const T top = max[r];
    const T factor = grad[r] / sum[r];
    for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
      access.store(out + at, VectorMath<T>::exp(access.load(in + at) - top) * factor);
    });
  }
}

}  // namespace
}  // namespace tessera::kernels
