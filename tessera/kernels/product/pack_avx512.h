// Pack on AVX-512.
#pragma once

#include <immintrin.h>

#define TESSERA_REGISTER_BYTES 64
#include "tessera/kernels/product/pack.h"

namespace tessera::kernels {
namespace {

using Floats = Pack<float>;
using Doubles = Pack<double>;

// Full masks: the forms without a mask are written with an undefined register that gcc 12 warns about.
constexpr __mmask16 kAllFloats = 0xFFFF;
constexpr __mmask8 kAllDoubles = 0xFF;

inline __mmask16 first_lanes(int64_t count, Floats) { return static_cast<__mmask16>((1u << count) - 1); }
inline __mmask8 first_lanes(int64_t count, Doubles) { return static_cast<__mmask8>((1u << count) - 1); }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
inline Floats sqrt(Floats a) { return _mm512_maskz_sqrt_ps(kAllFloats, a); }
inline Doubles sqrt(Doubles a) { return _mm512_maskz_sqrt_pd(kAllDoubles, a); }
inline Floats max(Floats a, Floats b) { return _mm512_maskz_max_ps(kAllFloats, a, b); }
inline Doubles max(Doubles a, Doubles b) { return _mm512_maskz_max_pd(kAllDoubles, a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_maskz_min_ps(kAllFloats, a, b); }
inline Doubles min(Doubles a, Doubles b) { return _mm512_maskz_min_pd(kAllDoubles, a, b); }

inline Floats load_first(const float* from, int64_t count, Floats fill) {
  return _mm512_mask_loadu_ps(fill, first_lanes(count, fill), from);
}
inline Doubles load_first(const double* from, int64_t count, Doubles fill) {
  return _mm512_mask_loadu_pd(fill, first_lanes(count, fill), from);
}
inline Floats keep_first(int64_t count, Floats value, Floats other) {
  return _mm512_mask_mov_ps(other, first_lanes(count, value), value);
}
inline Doubles keep_first(int64_t count, Doubles value, Doubles other) {
  return _mm512_mask_mov_pd(other, first_lanes(count, value), value);
}
inline void store_first(float* to, Floats value, int64_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count, value), value);
}
inline void store_first(double* to, Doubles value, int64_t count) {
  _mm512_mask_storeu_pd(to, first_lanes(count, value), value);
}

inline Floats scale(Floats a, Floats n) { return _mm512_maskz_scalef_ps(kAllFloats, a, n); }
inline Doubles scale(Doubles a, Doubles n) { return _mm512_maskz_scalef_pd(kAllDoubles, a, n); }

}  // namespace
}  // namespace tessera::kernels
