// Functions of one register of values: the same fixed formula for each lane on every instruction set.
//
// For the sources of one instruction set alone, after pack_<isa>.h.
#pragma once

#include "tessera/kernels/vector_math_fits.h"

namespace tessera::kernels {
namespace {

template <typename T>
struct VectorMath {
  using V = Pack<T>;
  using B = Bits<T>;
  using F = Fits<T>;
  using Types = PackTypes<T>;

  static V magnitude(V x) { return reinterpret_cast<V>(reinterpret_cast<B>(x) & ~sign_bit()); }

  static V exp(V x) {
    const Scaled e = scaled_exp(clamp(x, F::kExpBottom, F::kExpTop));
    return scale(e.significand, e.exponent);
  }

  // By log((1 + s) / (1 - s)) for the significand of x, between sqrt(1/2) and sqrt(2).
  static V log(V x) {
    const auto denormal = x < F::kSmallestNormal;
    const B bits = reinterpret_cast<B>(denormal ? x * F::kDenormalScale : x) + (Types::kOne - F::kSqrtHalf);
    constexpr auto kMantissa = (decltype(Types::kOne){1} << Types::kMantissaBits) - 1;
    constexpr auto kExponent = (decltype(Types::kOne){1} << (sizeof(T) * 8 - 1 - Types::kMantissaBits)) - 1;
    const B exponent = reinterpret_cast<B>(reinterpret_cast<Unsigned>(bits) >> Types::kMantissaBits) & kExponent;
    const V f = reinterpret_cast<V>((bits & kMantissa) + F::kSqrtHalf) - T(1);
    const V biased = reinterpret_cast<V>(exponent | reinterpret_cast<B>(splat<T>(Types::kRounder)));
    const V shift = denormal ? splat<T>(kExponent / 2 + F::kDenormalShift) : splat<T>(kExponent / 2);
    const V n = (biased - Types::kRounder) - shift;
    const V s = f / (f + T(2));
    const V z = s * s;
    const V half_square = f * T(0.5) * f;
    const V rest = fma(s, fma(z, polynomial(F::kLog, z), half_square), n * F::kLn2Low);
    const V result = fma(n, splat<T>(F::kLn2High), f - (half_square - rest));
    const V infinity = splat<T>(__builtin_inf());
    return x > T(0) ? (x < infinity ? result : x) : (x == T(0) ? -infinity : splat<T>(__builtin_nan("")));
  }

  static V tanh(V x) {
    const V a = magnitude(x);
    const V z = a * a;
    const V small = fma(a, z * polynomial(F::kTanh, z), a);
    const V e = exp(T(2) * min(splat<T>(F::kTanhTop), a));
    const V large = T(1) - T(2) / (e + T(1));
    return with_sign(a < T(0.6) ? small : large, x);
  }

  static V erf(V x) {
    const V a = magnitude(x);
    const V small = fma(a, polynomial(F::kErf, a * a), a);
    const V t = min(splat<T>(F::kErfTop), a) - T(1);
    const Scaled erfc = scaled_exp(polynomial(F::kLogErfc, t));
    return with_sign(a < T(0.9) ? small : T(1) - scale(erfc.significand, erfc.exponent), x);
  }

  static V sigmoid(V x) {
    const V e = exp(-magnitude(x));
    return over_one_plus(x < T(0) ? e : splat<T>(1), V{}, e);
  }

  static V silu(V x) {
    const V a = min(splat<T>(F::kSiluTop), magnitude(x));
    return times_sigmoid(x, a, scaled_exp(-a));
  }

  static V silu_backward(V grad, V x) {
    return grad * logistic_slope(x, x, exp(-magnitude(x)));
  }

  // x Phi(x): x less the part of x beyond the tail for x above zero, the tail's part of x below.
  static V gelu(V x) {
    const V a = min(splat<T>(F::kGeluTop), magnitude(x));
    const Tail tail = normal_tail(a);
    const V below = min(splat<T>(0), x);
    return (max(splat<T>(T(-0.0)), x) - scale(a * tail.area, tail.exponent)) - (below - below);  // NaN for minus infinity
  }

  // Phi(x) + x phi(x)
  static V gelu_backward(V grad, V x) {
    const V a = min(splat<T>(F::kGeluTop), magnitude(x));
    const Tail tail = normal_tail(a);
    const V t = scale(fma(a * -kNormalHeight, tail.height, tail.area), tail.exponent);
    return grad * ((x < T(0) ? t : T(1) - t) - (x - x));
  }

  // x sigmoid(v(x)) for v(x) = 2 sqrt(2/pi) (x + 0.044715 x^3)
  static V gelu_tanh(V x) {
    const V a = min(splat<T>(F::kGeluTanhTop), magnitude(x));
    return times_sigmoid(x, a, exp_of_gelu_tanh(a));
  }

  // s (1 + x v'(x) (1 - s)) for s = sigmoid(v(x))
  static V gelu_tanh_backward(V grad, V x) {
    const V a = min(splat<T>(F::kGeluTanhTop), magnitude(x));
    const Scaled scaled = exp_of_gelu_tanh(a);
    const V e = scale(scaled.significand, scaled.exponent);
    const V slope = fma(a * a, splat<T>(3 * F::kGeluTanhB), splat<T>(F::kGeluTanhA));
    return grad * (logistic_slope(x, with_sign(a, x) * slope, e) - (x - x));
  }

 private:
  using Unsigned = typename Types::Unsigned;
  static constexpr T kNormalHeight = 0.39894228040143267794;  // 1 / sqrt(2 pi)

  // significand * 2^exponent
  struct Scaled {
    V significand, exponent;
  };
  // Of the normal distribution beyond a: area * 2^exponent; height * 2^exponent is e^(-a^2/2).
  struct Tail {
    V area, height, exponent;
  };

  static B sign_bit() { return reinterpret_cast<B>(splat<T>(T(-0.0))); }
  static V with_sign(V a, V x) {
    return reinterpret_cast<V>(reinterpret_cast<B>(a) | (reinterpret_cast<B>(x) & sign_bit()));
  }
  static V clamp(V x, T low, T high) { return min(splat(high), max(splat(low), x)); }  // NaN passes

  // numerator / (1 + e) for e from 0 to 1; low is the rest of the numerator. The rounding errors of 1 + e and of its
  // inverse are put back, so that the result is rounded nearly once.
  static V over_one_plus(V numerator, V low, V e) {
    const V sum = e + T(1);
    const V sum_low = e - (sum - T(1));
    const V inverse = T(1) / sum;
    const V error = fma(-inverse, sum_low, fma(-inverse, sum, splat<T>(1)));
    return fma(numerator, inverse, inverse * fma(numerator, error, low));
  }

  // s + s (1 - s) factor for the logistic function s of v or -v, whichever has the sign of x, and e = e^-|v|.
  static V logistic_slope(V x, V factor, V e) {
    const V large = over_one_plus(splat<T>(1), V{}, e);
    const V small = e * large;
    const auto below = x < T(0);
    return (below ? small : large) * fma(factor, below ? large : small, splat<T>(1));
  }

  // x times the logistic function of v or -v, likewise, for e = e^-|v| in two parts and a = |x|, cut off where the product underflows for negative x.
  static V times_sigmoid(V x, V a, Scaled e) {
    const auto below = x < T(0);
    const V product = e.significand * -a;
    const V product_low = fma(e.significand, -a, -product);
    const V ratio = over_one_plus(below ? product : x, below ? product_low : splat<T>(T(-0.0)), scale(e.significand, e.exponent));
    const V y = scale(ratio, below ? e.exponent : V{});
    const V infinity = splat<T>(__builtin_inf());
    return magnitude(x) < infinity ? y : x + infinity;  // NaN for minus infinity, as x * 0 would be
  }

  template <int kCount>
  static V polynomial(const T (&coefficients)[kCount], V x) {
    V result = splat(coefficients[kCount - 1]);
#pragma GCC unroll 32
    for (int i = kCount - 2; i >= 0; --i) result = fma(result, x, splat(coefficients[i]));
    return result;
  }

  // e^x = 2^n e^r for whole n and |r| <= ln(2) / 2
  static Scaled scaled_exp(V x) {
    const V n = fma(x, splat<T>(1.4426950408889634074), splat<T>(Types::kRounder)) - Types::kRounder;
    const V r = fma(n, splat<T>(-F::kLn2High), x);
    return {exp_near_zero(fma(n, splat<T>(-F::kLn2Low), r)), n};
  }

  // e^(x + low) for a small low
  static Scaled scaled_exp(V x, V low) {
    const V n = fma(x, splat<T>(1.4426950408889634074), splat<T>(Types::kRounder)) - Types::kRounder;
    const V r = fma(n, splat<T>(-F::kLn2High), x);
    return {exp_near_zero(r + fma(n, splat<T>(-F::kLn2Low), low)), n};
  }

  static V exp_near_zero(V r) {
    const V one = splat<T>(1);
    return fma(fma(polynomial(F::kExp, r), r, one), r, one);
  }

  static Tail normal_tail(V a) {
    const V square = a * a;
    const Scaled e = scaled_exp(square * T(-0.5), fma(a, a, -square) * T(-0.5));
    const V sum = a + F::kGeluPole;
    const V rounded = sum - F::kGeluPole;  // the a that stands in the sum
    const V ratio = polynomial(F::kTail, (rounded - F::kGeluPole) / sum) / sum;
    const V slope = fma(a, ratio, splat<T>(-kNormalHeight));
    return {e.significand * fma(a - rounded, slope, ratio), e.significand, e.exponent};
  }

  // e^-v(a) with v(a) = a (A + B a^2) to twice the precision: its error would be one of the result times v.
  static Scaled exp_of_gelu_tanh(V a) {
    const V b = splat<T>(F::kGeluTanhB);
    const V square = a * a;
    const V square_low = fma(a, a, -square);
    const V cubic = b * square;
    const V cubic_low = fma(b, square, -cubic) + fma(b, square_low, square * F::kGeluTanhBLow);
    const V slope = cubic + F::kGeluTanhA;
    const V added = slope - cubic;
    const V sum_low = (cubic - (slope - added)) + (F::kGeluTanhA - added);
    const V slope_low = sum_low + (cubic_low + F::kGeluTanhALow);
    const V v = a * slope;
    const V v_low = fma(a, slope, -v) + a * slope_low;
    return scaled_exp(-v, -v_low);
  }
};

}  // namespace
}  // namespace tessera::kernels
