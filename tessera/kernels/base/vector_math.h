// Functions of one register of values: the same fixed formula for each lane on every instruction set.
//
// For the sources of one instruction set alone, after pack_<isa>.h.
#pragma once

#include "tessera/kernels/base/vector_math_fits.h"

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
    const V e = value(scaled_exp(T(2) * min(splat<T>(F::kTanhTop), a)));
    const V large = T(1) - T(2) / (e + T(1));
    return with_sign(a < T(0.6) ? small : large, x);
  }

  static V erf(V x) {
    const V a = magnitude(x);
    const V small = fma(a, polynomial(F::kErf, a * a), a);
    const V t = min(splat<T>(F::kErfTop), a) - T(1);
    const Scaled erfc = scaled_exp(polynomial(F::kLogErfc, t));
    return with_sign(a < T(0.9) ? small : fma(raised(erfc.significand, erfc), splat<T>(-kLower), splat<T>(1)), x);
  }

  static V sigmoid(V x) {
    const V e = exp_below_zero(-magnitude(x));
    return over_one_plus(x < T(0) ? e : splat<T>(1), V{}, e);
  }

  static V silu(V x) {
    const V a = min(splat<T>(F::kSiluTop), magnitude(x));
    return times_sigmoid(x, a, scaled_exp(-a));
  }

  static V silu_backward(V grad, V x) { return grad * logistic_slope(x, x, exp_below_zero(-magnitude(x))); }

  // x Phi(x), in place, for packs side by side.
  template <int kPacks>
  static void gelu(V (&x)[kPacks]) {
    if constexpr (sizeof(T) == 4) {
      gelu_by_pieces(x);
    } else {
      for (V& pack : x) {
        pack = gelu_by_halves(pack);
      }
    }
  }

  // Phi(x) + x phi(x), as in gelu_by_halves.
  static V gelu_backward(V grad, V x) {
    const V a = min(splat<T>(F::kGeluTop), magnitude(x));
    const V half = a * T(-0.5);
    const V square = half * a;
    const V near = fma(x, splat<T>(2 * kNormalHeight), x * polynomial(F::kSlope, square)) + T(0.5);
    const Scaled e = scaled_exp(square, fma(half, a, -square));
    const V slope = fma(a, splat<T>(-kNormalHeight), split_polynomial(F::kSlopeTail, gelu_place(a)));
    const V tail = raised(fma(e.rest, slope, slope), e);
    const V far = fma(tail, x < T(0) ? splat<T>(kLower) : splat<T>(-kLower), (x < T(0) ? V{} : splat<T>(1)) - (x - x));
    return grad * (a < F::kGeluEdge ? near : far);
  }

  // x sigmoid(v(x)) for v(x) = 2 sqrt(2/pi) (x + 0.044715 x^3)
  static V gelu_tanh(V x) {
    const V a = min(splat<T>(F::kGeluTanhTop), magnitude(x));
    return times_sigmoid(x, a, exp_of_gelu_tanh(a));
  }

  // s (1 + x v'(x) (1 - s)) for s = sigmoid(v(x))
  static V gelu_tanh_backward(V grad, V x) {
    const V a = min(splat<T>(F::kGeluTanhTop), magnitude(x));
    const V e = value(exp_of_gelu_tanh(a));
    const V slope = fma(a * a, splat<T>(3 * F::kGeluTanhB), splat<T>(F::kGeluTanhA));
    return grad * (logistic_slope(x, with_sign(a, x) * slope, e) - (x - x));
  }

 private:
  using Unsigned = typename Types::Unsigned;
  static constexpr T kNormalHeight = 0.39894228040143267794;  // 1 / sqrt(2 pi)

  // Powers of two are multiplied in two steps of which the first cannot underflow.
  static constexpr int kRaise = sizeof(T) == 4 ? 64 : 128;
  static constexpr T kLower = sizeof(T) == 4 ? T(0x1p-64) : T(0x1p-128);

  // significand * 2^exponent with significand = 1 + rest, both rounded; `shifted` is exponent + kRounder.
  struct Scaled {
    V significand, rest, exponent, shifted;
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

  // x times the logistic function of v or -v, likewise, for e = e^-|v| in two parts and a = |x|, cut off where the
  // product underflows for negative x.
  static V times_sigmoid(V x, V a, Scaled e) {
    const auto below = x < T(0);
    const V product = e.significand * -a;
    const V product_low = fma(e.significand, -a, -product);
    const V ratio = over_one_plus(below ? product : x, below ? product_low : splat<T>(T(-0.0)), value(e));
    const V y = below ? lowered(ratio, e) : ratio;
    const V infinity = splat<T>(__builtin_inf());
    return magnitude(x) < infinity ? y : x + infinity;  // NaN for minus infinity, as x * 0 would be
  }

  template <int kCount>
  static V polynomial(const T (&coefficients)[kCount], V x) {
    V result = splat(coefficients[kCount - 1]);
#pragma GCC unroll 32
    for (int i = kCount - 2; i >= 0; --i) {
      result = fma(result, x, splat(coefficients[i]));
    }
    return result;
  }

  // c[0] + x (...), the rest as even and odd powers: half as long a chain as `polynomial`, nearly as exact.
  template <int kCount>
  static V split_polynomial(const T (&c)[kCount], V x) {
    const V square = x * x;
    V above = splat(c[kCount - 1]), sum = splat(c[kCount - 2]);
#pragma GCC unroll 32
    for (int i = kCount - 3; i >= 1; --i) {
      const V next = fma(above, square, splat(c[i]));
      above = sum;
      sum = next;
    }
    return fma(fma(above, x, sum), x, splat(c[0]));
  }

  // Near zero x (1/2 + x (c + p(-x^2/2))), else x above zero, nothing below, less the tail e^(-a^2/2) (c + d(a)).
  static V gelu_by_halves(V x) {
    const V a = min(splat<T>(F::kGeluTop), magnitude(x));
    const V half = a * T(-0.5);
    const V square = half * a;
    const V slope = fma(x, splat<T>(kNormalHeight), x * polynomial(F::kPhi, square));
    const V near = with_sign(fma(x, slope, x * T(0.5)), x);
    const Scaled e = scaled_exp(square, fma(half, a, -square));
    const V d = split_polynomial(F::kGeluTail, gelu_place(a));
    const V tail = fma(e.rest, splat<T>(kNormalHeight), fma(e.rest, d, d)) + kNormalHeight;
    const V far = fma(raised(tail, e), splat<T>(-kLower), x > T(0) ? x : x - x);  // x - x: NaN for minus infinity
    return a < F::kGeluEdge ? near : far;
  }

  // x above zero, nothing below, less g e^(-a^2/2) m(a) for a = |x|, g = min(a, 1/2): m is a polynomial for each piece
  // of the line, and pieces end where a + 1 is 1.5, 2, 3, 4, 6, 8 or 12. Each pack is one long chain.
  template <int kPacks>
  static void gelu_by_pieces(V (&x)[kPacks]) {
    constexpr T kShift = Types::kRounder + kRaise + 127;  // brings 2^n / kLower out of the sum's last bits
    V a[kPacks], t[kPacks], shifted[kPacks], r[kPacks], p[kPacks], e[kPacks];
    B piece[kPacks];
    for (int k = 0; k < kPacks; ++k) {
      a[k] = min(splat<T>(F::kGeluTop), magnitude(x[k]));
      piece[k] = reinterpret_cast<B>(reinterpret_cast<Unsigned>(a[k] + T(1)) >> (Types::kMantissaBits - 1));
      t[k] = a[k] - picked(F::kGeluMiddles, piece[k]);
      shifted[k] = fma(a[k] * T(-0.5 * 1.4426950408889634074), a[k], splat(kShift));
      const V n = shifted[k] - kShift;
      r[k] = fma(n, splat<T>(-F::kLn2Low), -fma(a[k] * T(0.5), a[k], n * F::kLn2High));
      p[k] = fma(picked(F::kGeluPieces[7], piece[k]), t[k], picked(F::kGeluPieces[6], piece[k]));
      p[k] = fma(p[k], t[k], picked(F::kGeluPieces[5], piece[k]));
      e[k] = splat(F::kExp[4]);
    }
#pragma GCC unroll 4
    for (int i = 4; i >= 1; --i) {
      for (int k = 0; k < kPacks; ++k) {
        e[k] = fma(e[k], r[k], splat(F::kExp[i - 1]));
        p[k] = fma(p[k], t[k], picked(F::kGeluPieces[i], piece[k]));
      }
    }
    for (int k = 0; k < kPacks; ++k) {
      const V centre = picked(F::kGeluPieces[0], piece[k]), beside = p[k] * t[k];
      const V rest = fma(r[k] * r[k], e[k], r[k]);
      const V tail = fma(beside + centre, rest, beside) + centre;
      const V factor =
          min(splat(T(0.5)), a[k]) * reinterpret_cast<V>(reinterpret_cast<B>(shifted[k]) << Types::kMantissaBits);
      x[k] = fma(tail * factor, splat(-kLower), x[k] - min(x[k], V{}));  // x - x: NaN for minus infinity
    }
  }

  // table[at mod 8]
  static V picked(const T (&table)[8], B at) {
    V result;
    if constexpr (kWidth<T> >= 8) {
      for (int j = 0; j < kWidth<T>; ++j) {
        result[j] = table[j % 8];
      }
      result = __builtin_shuffle(result, at);
    } else {
      for (int j = 0; j < kWidth<T>; ++j) {
        result[j] = table[at[j] & 7];
      }
    }
    return result;
  }

  // a / (a + kGeluPole) - kGeluCentre; what the sum drops is put back by its effect on the quotient for a near 1.5.
  static V gelu_place(V a) {
    const V sum = a + F::kGeluPole;
    const V dropped = a - (sum - F::kGeluPole);
    return fma(dropped, splat<T>(T(-0.046)), a / sum - F::kGeluCentre);
  }

  // e^x = 2^n e^r for whole n and |r| <= ln(2) / 2
  static Scaled scaled_exp(V x) {
    const V shifted = fma(x, splat<T>(1.4426950408889634074), splat<T>(Types::kRounder));
    const V n = shifted - Types::kRounder;
    const V r = fma(n, splat<T>(-F::kLn2High), x);
    return exp_near_zero(fma(n, splat<T>(-F::kLn2Low), r), n, shifted);
  }

  // e^(x + low) for a small low
  static Scaled scaled_exp(V x, V low) {
    const V shifted = fma(x, splat<T>(1.4426950408889634074), splat<T>(Types::kRounder));
    const V n = shifted - Types::kRounder;
    const V r = fma(n, splat<T>(-F::kLn2High), x);
    return exp_near_zero(r + fma(n, splat<T>(-F::kLn2Low), low), n, shifted);
  }

  static Scaled exp_near_zero(V r, V n, V shifted) {
    const V one = splat<T>(1), rest = polynomial(F::kExp, r);
    return {fma(fma(rest, r, one), r, one), fma(r * r, rest, r), n, shifted};
  }

  // a * 2^exponent / kLower for e's exponent from -kRaise - 126 to kRaise - 4; exact if a is normal.
  static V raised(V a, const Scaled& e) {
    constexpr auto kBias = (decltype(Types::kOne){kRaise} << Types::kMantissaBits) + Types::kOne;
    return a * reinterpret_cast<V>((reinterpret_cast<B>(e.shifted) << Types::kMantissaBits) + kBias);
  }
  // a * 2^exponent, rounded once.
  static V lowered(V a, const Scaled& e) { return raised(a, e) * kLower; }
  static V value(const Scaled& e) { return lowered(e.significand, e); }
  static V exp_below_zero(V x) { return value(scaled_exp(max(splat<T>(F::kExpBottom), x))); }

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
