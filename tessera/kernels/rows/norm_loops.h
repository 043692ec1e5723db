// RMSNorm, LayerNorm and sums over tokens on one instruction set. For table_<isa>.cpp alone.
#pragma once

#include "tessera/kernels/base/lanes.h"
#include "tessera/kernels/base/table.h"

namespace tessera::kernels {
namespace {

template <typename T>
T inverse_root(T x) {
  return T(1) / sqrt(splat(x))[0];
}

// How a kernel reads the weight: as it is, or as ones.
template <typename T>
struct Weight {
  const T* data;

  Pack<T> times(Pack<T> value, int64_t at, auto access) const { return value * access.load(data + at); }
  Pack<T> times_plus(Pack<T> value, Pack<T> add, int64_t at, auto access) const {
    return fma(value, access.load(data + at), add);
  }
};
template <typename T>
struct NoWeight {
  Pack<T> times(Pack<T> value, int64_t, auto) const { return value; }
  Pack<T> times_plus(Pack<T> value, Pack<T> add, int64_t, auto) const { return value + add; }
};

// Calls body(Weight or NoWeight).
template <typename T, typename Body>
void with_weight(const T* weight, const Body& body) {
  weight != nullptr ? body(Weight<T>{weight}) : body(NoWeight<T>{});
}

template <typename T>
void rms_norm(Shape shape, Rows<const T> x, const T* weight, T eps, Rows<T> y, T* rstd) {
  with_weight(weight, [&](auto w) {
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* in = x.row(r);
      T* out = y.row(r);
      const T squares = sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) {
        const Pack<T> value = access.load(in + at);
        return fma(value, value, lane);
      });
      const T scale = rstd[r] = inverse_root(squares / static_cast<T>(shape.n) + eps);
      for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
        access.store(out + at, w.times(access.load(in + at) * scale, at, access));
      });
    }
  });
}

template <typename T>
void rms_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* rstd, Rows<T> dx) {
  with_weight(weight, [&](auto w) {
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* g = grad.row(r);
      const T* in = x.row(r);
      T* out = dx.row(r);
      const T scale = rstd[r];
      const T dot = sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) {
        return fma(w.times(access.load(g + at), at, access), access.load(in + at), lane);
      });
      const T along = ((dot * scale) * scale) * (scale / static_cast<T>(shape.n));
      for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
        const Pack<T> direct = w.times(access.load(g + at), at, access) * scale;
        access.store(out + at, fma(access.load(in + at), splat(-along), direct));
      });
    }
  });
}

template <typename T, typename W>
void layer_norm_rows(Shape shape, Rows<const T> x, W w, const T* bias, T eps, Rows<T> y, T* mean, T* rstd) {
  const T count = static_cast<T>(shape.n);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const T* in = x.row(r);
    T* out = y.row(r);
    const T middle = mean[r] =
        sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) { return lane + access.load(in + at); }) /
        count;
    const T squares = sum_lanes<T>(shape.n, [=](Pack<T> lane, int64_t at, auto access) {
      const Pack<T> centred = access.load(in + at) - middle;
      return fma(centred, centred, lane);
    });
    const T scale = rstd[r] = inverse_root(squares / count + eps);
    for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
      const Pack<T> add = bias != nullptr ? access.load(bias + at) : splat<T>(T(-0.0));
      access.store(out + at, w.times_plus((access.load(in + at) - middle) * scale, add, at, access));
    });
  }
}

template <typename T>
void layer_norm(Shape shape, Rows<const T> x, const T* weight, const T* bias, T eps, Rows<T> y, T* mean, T* rstd) {
  with_weight(weight, [&](auto w) { layer_norm_rows<T>(shape, x, w, bias, eps, y, mean, rstd); });
}

template <typename T>
void layer_norm_backward(Shape shape, Rows<const T> grad, Rows<const T> x, const T* weight, const T* mean,
                         const T* rstd, Rows<T> dx) {
  const T count = static_cast<T>(shape.n);
  with_weight(weight, [&](auto w) {
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* g = grad.row(r);
      const T* in = x.row(r);
      T* out = dx.row(r);
      const T middle = mean[r];
      const T scale = rstd[r];
      const auto normal = [=](int64_t at, auto access) { return (access.load(in + at) - middle) * scale; };
      Lanes<T> sums[2];
      run_lanes<T>(shape.n, sums, [=](int which, Pack<T> lane, int64_t at, auto access) {
        const Pack<T> weighted = w.times(access.load(g + at), at, access);
        return which == 0 ? lane + weighted : fma(weighted, normal(at, access), lane);
      });
      const T plain = add_lanes(sums[0]) / count;
      const T along = add_lanes(sums[1]) / count;
      for_each_pack<T>(shape.n, [=](int64_t at, auto access) {
        const Pack<T> weighted = w.times(access.load(g + at), at, access);
        access.store(out + at, fma(normal(at, access), splat(-along), weighted - plain) * scale);
      });
    }
  });
}

// out[i] += the chain over tokens t = 0, 1, ... of lane = step(lane, t, at, access), from +0.
template <typename T, typename Step>
void add_columns(Shape tokens, T* out, const Step& step) {
  constexpr int kBlock = 4;
  int64_t at = 0;
  for (; at + kBlock * kWidth<T> <= tokens.n; at += kBlock * kWidth<T>) {
    Pack<T> sums[kBlock] = {};
    for (int64_t t = 0; t < tokens.rows; ++t) {
#pragma GCC unroll 4
      for (int p = 0; p < kBlock; ++p) {
        sums[p] = step(sums[p], t, at + p * kWidth<T>, Whole<T>{});
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kBlock; ++p) {
      store<T>(out + at + p * kWidth<T>, load<T>(out + at + p * kWidth<T>) + sums[p]);
    }
  }
  for_each_pack<T>(tokens.n - at, [&](int64_t rest, auto access) {
    Pack<T> sum = {};
    for (int64_t t = 0; t < tokens.rows; ++t) {
      sum = step(sum, t, at + rest, access);
    }
    access.store(out + at + rest, access.load(out + at + rest) + sum);
  });
}

template <typename T>
void column_sum(Shape tokens, Rows<const T> grad, T* out) {
  add_columns<T>(tokens, out,
                 [=](Pack<T> sum, int64_t t, int64_t at, auto access) { return sum + access.load(grad.row(t) + at); });
}

template <typename T>
void rms_norm_weight(Shape tokens, Rows<const T> grad, Rows<const T> x, const T* rstd, T* weight) {
  add_columns<T>(tokens, weight, [=](Pack<T> sum, int64_t t, int64_t at, auto access) {
    return fma(access.load(grad.row(t) + at), access.load(x.row(t) + at) * rstd[t], sum);
  });
}

template <typename T>
void layer_norm_weight(Shape tokens, Rows<const T> grad, Rows<const T> x, const T* mean, const T* rstd, T* weight) {
  add_columns<T>(tokens, weight, [=](Pack<T> sum, int64_t t, int64_t at, auto access) {
    return fma(access.load(grad.row(t) + at), (access.load(x.row(t) + at) - mean[t]) * rstd[t], sum);
  });
}

template <typename T>
void picked_sum(int64_t count, const int64_t* picked, int64_t n, Rows<const T> grad, T* out) {
  add_columns<T>({count, n}, out, [=](Pack<T> sum, int64_t t, int64_t at, auto access) {
    return sum + access.load(grad.row(picked[t]) + at);
  });
}

}  // namespace
}  // namespace tessera::kernels
