// Pack on AVX2 and FMA.
#pragma once

#include <immintrin.h>

#define TESSERA_REGISTER_BYTES 32
#include "tessera/kernels/product/pack.h"

namespace tessera::kernels {
namespace {

using Floats = Pack<float>;
using Doubles = Pack<double>;

inline Bits<float> first_lanes(int count, Floats) { return Bits<float>{0, 1, 2, 3, 4, 5, 6, 7} < count; }
inline Bits<double> first_lanes(int64_t count, Doubles) { return Bits<double>{0, 1, 2, 3} < count; }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
inline Floats sqrt(Floats a) { return _mm256_sqrt_ps(a); }
inline Doubles sqrt(Doubles a) { return _mm256_sqrt_pd(a); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Doubles max(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Doubles min(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }

inline Floats load_first(const float* from, int64_t count, Floats fill) {
  const Bits<float> lanes = first_lanes(static_cast<int>(count), fill);
  const Floats loaded = _mm256_maskload_ps(from, reinterpret_cast<__m256i>(lanes));
  return lanes ? loaded : fill;
}
inline Doubles load_first(const double* from, int64_t count, Doubles fill) {
  const Bits<double> lanes = first_lanes(count, fill);
  const Doubles loaded = _mm256_maskload_pd(from, reinterpret_cast<__m256i>(lanes));
  return lanes ? loaded : fill;
}
inline Floats keep_first(int64_t count, Floats value, Floats other) {
  return first_lanes(static_cast<int>(count), value) ? value : other;
}
inline Doubles keep_first(int64_t count, Doubles value, Doubles other) {
  return first_lanes(count, value) ? value : other;
}
inline void store_first(float* to, Floats value, int64_t count) {
  _mm256_maskstore_ps(to, reinterpret_cast<__m256i>(first_lanes(static_cast<int>(count), value)), value);
}
inline void store_first(double* to, Doubles value, int64_t count) {
  _mm256_maskstore_pd(to, reinterpret_cast<__m256i>(first_lanes(count, value)), value);
}

inline Floats scale(Floats a, Floats n) { return scale_in_two_steps<float>(a, n); }
inline Doubles scale(Doubles a, Doubles n) { return scale_in_two_steps<double>(a, n); }

}  // namespace
}  // namespace tessera::kernels
