// What the `counter` generator makes of random words: each sampler turns the four words of a block into kValues
// neighbouring elements. In scalar double precision where it takes a function, so that a value does not depend on what
// stands beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/random/distribution.h"

namespace tessera::random {

inline uint64_t wide(const uint32_t* words) { return words[0] | uint64_t{words[1]} << 32; }

inline uint64_t bounded(uint64_t bits, uint64_t range) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * range >> 64);
}

// A 16-bit value is the float32 value rounded.
template <typename T>
T rounded(double value) {
  using Math = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return static_cast<T>(static_cast<Math>(value));
}

template <typename T>
struct UniformSampler {
  static constexpr bool kDouble = std::is_same_v<T, double>;
  static constexpr int64_t kValues = kDouble ? 2 : 4;
  using Math = std::conditional_t<kDouble, double, float>;

  explicit UniformSampler(const Uniform& d)
      : from(static_cast<Math>(d.from)),
        range(static_cast<Math>(d.to) - from),
        top(static_cast<Math>(static_cast<T>(d.to))) {
    TESSERA_CHECK(d.from <= d.to && std::isfinite(range), "[uniform] cannot draw from [", d.from, ", ", d.to,
                  "); give from <= to and a range that the dtype can hold");
  }

  void operator()(const uint32_t* words, T* out) const {
    for (int64_t j = 0; j < kValues; ++j) {
      Math unit;
      if constexpr (kDouble) {
        unit = static_cast<double>(wide(words + 2 * j) >> 11) * 0x1p-53;
      } else {
        unit = static_cast<float>(words[j] >> 8) * 0x1p-24f;
      }
      const T value = static_cast<T>(unit * range + from);
      out[j] = static_cast<Math>(value) < top ? value : static_cast<T>(from);
    }
  }

  Math from, range, top;
};

// In pairs, by Box and Muller.
template <typename T>
struct NormalSampler {
  static constexpr int64_t kValues = std::is_same_v<T, double> ? 2 : 4;

  explicit NormalSampler(const Normal& d) : mean(d.mean), std(d.std) {
    TESSERA_CHECK(d.std >= 0, "[normal] standard deviation ", d.std, "; it must be at least 0");
  }

  void operator()(const uint32_t* words, T* out) const {
    for (int64_t j = 0; j < kValues; j += 2) {
      double first, second;
      if constexpr (kValues == 2) {
        first = (static_cast<double>(wide(words) >> 11) + 0.5) * 0x1p-53;
        second = (static_cast<double>(wide(words + 2) >> 11) + 0.5) * 0x1p-53;
      } else {
        first = (static_cast<double>(words[j]) + 0.5) * 0x1p-32;
        second = (static_cast<double>(words[j + 1]) + 0.5) * 0x1p-32;
      }
      const double radius = std::sqrt(-2.0 * std::log(first));
      const double angle = 6.283185307179586476925 * second;
      out[j] = finished(radius * std::cos(angle) * std + mean);
      out[j + 1] = finished(radius * std::sin(angle) * std + mean);
    }
  }

  T finished(double value) const { return rounded<T>(is_log ? std::exp(value) : value); }

  double mean, std;
  bool is_log = false;  // what is drawn is the logarithm
};

// By the inverse of the distribution function, at a point inside of (0, 1): T operator()(double point) of `Inverse`.
template <typename T, typename Inverse>
struct InverseSampler {
  static constexpr int64_t kValues = sizeof(T) == 8 ? 2 : 4;

  void operator()(const uint32_t* words, T* out) const {
    for (int64_t j = 0; j < kValues; ++j) {
      out[j] = inverse(kValues == 2 ? (static_cast<double>(wide(words + 2 * j) >> 12) + 0.5) * 0x1p-52
                                    : (static_cast<double>(words[j]) + 0.5) * 0x1p-32);
    }
  }

  Inverse inverse;
};

template <typename T>
struct ExponentialInverse {
  explicit ExponentialInverse(const Exponential& d) : lambda(d.lambda) {
    TESSERA_CHECK(d.lambda > 0, "[exponential] rate ", d.lambda, "; it must be positive");
  }

  T operator()(double point) const {
    const T value = rounded<T>(-std::log(point) / lambda);
    return value > T(0) ? value : std::numeric_limits<T>::denorm_min();
  }

  double lambda;
};

template <typename T>
struct CauchyInverse {
  explicit CauchyInverse(const Cauchy& d) : median(d.median), sigma(d.sigma) {
    TESSERA_CHECK(d.sigma > 0, "[cauchy] scale ", d.sigma, "; it must be positive");
  }

  T operator()(double point) const {
    return rounded<T>(median + sigma * std::tan(3.14159265358979323846 * (point - 0.5)));
  }

  double median, sigma;
};

template <typename T>
struct GeometricInverse {
  explicit GeometricInverse(const Geometric& d) : rate(-std::log1p(-d.p)) {
    TESSERA_CHECK(0 < d.p && d.p < 1, "[geometric] probability ", d.p, "; it must lie inside of (0, 1)");
  }

  T operator()(double point) const {
    const double trials = std::max(1.0, std::ceil(-std::log(point) / rate));
    if constexpr (std::is_integral_v<T>) {
      constexpr T kMost = std::numeric_limits<T>::max();
      return trials < static_cast<double>(kMost) ? static_cast<T>(trials) : kMost;
    } else {
      return rounded<T>(trials);
    }
  }

  double rate;
};

template <typename T>
struct BernoulliSampler {
  static constexpr int64_t kValues = 4;

  explicit BernoulliSampler(const Bernoulli& d) : threshold(static_cast<uint32_t>(std::ceil(d.p * 0x1p24))) {
    TESSERA_CHECK(0 <= d.p && d.p <= 1, "[bernoulli] probability ", d.p, "; it must lie in [0, 1]");
  }

  void operator()(const uint32_t* words, T* out) const {
    for (int64_t j = 0; j < kValues; ++j) {
      out[j] = static_cast<T>((words[j] >> 8) < threshold ? 1.0f : 0.0f);
    }
  }

  uint32_t threshold;
};

template <typename T, bool kWide>
struct IntegerSampler {
  static constexpr int64_t kValues = kWide ? 2 : 4;

  void operator()(const uint32_t* words, T* out) const {
    for (int64_t j = 0; j < kValues; ++j) {
      const uint64_t place = kWide ? bounded(wide(words + 2 * j), range) : words[j] * range >> 32;
      out[j] = static_cast<T>(static_cast<int64_t>(static_cast<uint64_t>(from) + place));
    }
  }

  int64_t from;
  uint64_t range;
};

}  // namespace tessera::random
