// Rows of attention on one instruction set. For table_<isa>.cpp alone.
#pragma once

#include "tessera/kernels/rows/row_loops.h"

namespace tessera::kernels {
namespace {

// True for keys that may be seen: as numbers, 1 or 0.
template <typename T>
Pack<T> flags(const bool* allowed, int64_t count) {
  T values[kWidth<T>] = {};
  for (int64_t j = 0; j < count && j < kWidth<T>; ++j) {
    values[j] = static_cast<T>(allowed[j]);
  }
  return load<T>(values);
}

// x = x * scale, masked.
template <typename T>
void scale_and_mask(const AttentionRow<T>& row, T* x) {
  const Pack<T> nothing = splat<T>(-__builtin_inf());
  for_each_pack<T>(row.visible, [=](int64_t at, auto access) {
    Pack<T> value = access.load(x + at) * row.scale;
    if (row.added != nullptr) {
      value = value + access.load(row.added + at);
    }
    if (row.allowed != nullptr) {
      value = flags<T>(row.allowed + at, row.visible - at) > T(0) ? value : nothing;
    }
    access.store(x + at, value);
  });
  for (int64_t j = row.visible; j < row.n; ++j) {
    x[j] = -__builtin_inf();
  }
}

template <typename T>
T attention_weights(const AttentionRow<T>& row, T* x) {
  scale_and_mask(row, x);
  const T max = max_of_row(row.n, x);
  if (max == -__builtin_inf() && (row.added != nullptr || row.allowed != nullptr)) {
    bool is_masked = true;
    for (int64_t j = 0; j < row.n; ++j) {
      is_masked = is_masked && x[j] == -__builtin_inf();
    }
    for (int64_t j = 0; j < row.n && is_masked; ++j) {
      x[j] = T(0);
    }
    if (is_masked) {
      return T(0);
    }
  }
  const T sum = sum_lanes<T>(row.n, [=](Pack<T> lane, int64_t at, auto access) {
    const Pack<T> e = VectorMath<T>::exp(access.load(x + at) - max);
    access.store(x + at, e);
    return lane + e;
  });
  for_each_pack<T>(row.n, [=](int64_t at, auto access) { access.store(x + at, access.load(x + at) / sum); });
  return sum;
}

template <typename T>
T attention_slopes(const AttentionRow<T>& row, const T* weights, T* grad) {
  if (row.keep != nullptr) {
    for_each_pack<T>(row.n, [=](int64_t at, auto access) {
      access.store(grad + at, access.load(grad + at) * access.load(row.keep + at));
    });
  }
  const T sum = sum_lanes<T>(row.n, [=](Pack<T> lane, int64_t at, auto access) {
    return fma(access.load(grad + at), access.load(weights + at), lane);
  });
  for_each_pack<T>(row.visible, [=](int64_t at, auto access) {
    Pack<T> slope = access.load(weights + at) * (access.load(grad + at) - sum);
    if (row.allowed != nullptr) {
      slope = flags<T>(row.allowed + at, row.visible - at) > T(0) ? slope : Pack<T>{};
    }
    access.store(grad + at, slope * row.scale);
  });
  for (int64_t j = row.visible; j < row.n; ++j) {
    grad[j] = T(0) * row.scale;
  }
  return sum;
}

// No infinity, no NaN.
template <typename T>
bool is_finite(int64_t n, const T* x) {
  return sum_lanes<T>(n, [=](Pack<T> lane, int64_t at, auto access) {
           return fma(access.load(x + at), Pack<T>{}, lane);
         }) == T(0);
}

template <typename T>
bool has_minus_zero(int64_t n, const T* x) {
  Pack<T> found = {};
  const Pack<T> sign = splat<T>(T(-0.0));
  for_each_pack<T>(n, [&](int64_t at, auto access) {
    found = reinterpret_cast<Bits<T>>(access.load(x + at)) == reinterpret_cast<Bits<T>>(sign) ? splat<T>(1) : found;
  });
  for (int j = 0; j < kWidth<T>; ++j) {
    if (found[j] != T(0)) {
      return true;
    }
  }
  return false;
}

}  // namespace
}  // namespace tessera::kernels
