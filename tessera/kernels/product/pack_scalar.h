// Pack where nothing is known of the processor: short registers, and fma lane by lane.
#pragma once

#define TESSERA_REGISTER_BYTES 16
#include "tessera/kernels/product/pack.h"

namespace tessera::kernels {
namespace {

inline float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma_one(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrt_one(float a) { return __builtin_sqrtf(a); }
inline double sqrt_one(double a) { return __builtin_sqrt(a); }

template <typename T>
struct Scalar {
  using V = Pack<T>;

  static V fma(V a, V b, V c) {
    for (int j = 0; j < kWidth<T>; ++j) {
      c[j] = fma_one(a[j], b[j], c[j]);
    }
    return c;
  }
  static V sqrt(V a) {
    for (int j = 0; j < kWidth<T>; ++j) {
      a[j] = sqrt_one(a[j]);
    }
    return a;
  }
  static V load_first(const T* from, int64_t count, V fill) {
    for (int64_t j = 0; j < count; ++j) {
      fill[j] = from[j];
    }
    return fill;
  }
  static V keep_first(int64_t count, V value, V other) {
    for (int64_t j = 0; j < count; ++j) {
      other[j] = value[j];
    }
    return other;
  }
  static void store_first(T* to, V value, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      to[j] = value[j];
    }
  }
};

using Floats = Pack<float>;
using Doubles = Pack<double>;

inline Floats fma(Floats a, Floats b, Floats c) { return Scalar<float>::fma(a, b, c); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return Scalar<double>::fma(a, b, c); }
inline Floats sqrt(Floats a) { return Scalar<float>::sqrt(a); }
inline Doubles sqrt(Doubles a) { return Scalar<double>::sqrt(a); }
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Doubles max(Doubles a, Doubles b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
inline Doubles min(Doubles a, Doubles b) { return a < b ? a : b; }
inline Floats load_first(const float* from, int64_t count, Floats fill) {
  return Scalar<float>::load_first(from, count, fill);
}
inline Doubles load_first(const double* from, int64_t count, Doubles fill) {
  return Scalar<double>::load_first(from, count, fill);
}
inline Floats keep_first(int64_t count, Floats value, Floats other) {
  return Scalar<float>::keep_first(count, value, other);
}
inline Doubles keep_first(int64_t count, Doubles value, Doubles other) {
  return Scalar<double>::keep_first(count, value, other);
}
inline void store_first(float* to, Floats value, int64_t count) { Scalar<float>::store_first(to, value, count); }
inline void store_first(double* to, Doubles value, int64_t count) { Scalar<double>::store_first(to, value, count); }
inline Floats scale(Floats a, Floats n) { return scale_in_two_steps<float>(a, n); }
inline Doubles scale(Doubles a, Doubles n) { return scale_in_two_steps<double>(a, n); }

}  // namespace
}  // namespace tessera::kernels
