#include "tests/unit/kernels/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::kernels::oracle {

namespace {

constexpr int64_t kPiece = 256;

template <typename T>
T chain(int64_t begin, int64_t end, const std::function<T(int64_t)>& a, const std::function<T(int64_t)>& b) {
  T acc = T(0);
  for (int64_t s = begin; s < end; ++s) {
    acc = std::fma(a(s), b(s), acc);
  }
  return acc;
}

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// A result is tiny if it is below the smallest normal number when rounded as if exponents had no end.
float flushing_fma(float a, float b, float c) {
  a = flushed(a), b = flushed(b);
  const float result = std::fma(a, b, c);
  if (std::fabs(result) > std::numeric_limits<float>::min() || std::isnan(result)) {
    return result;
  }
  const float scaled = std::fma(std::ldexp(a, 50), std::ldexp(b, 50), std::ldexp(c, 100));
  const bool is_tiny = std::fabs(scaled) < std::ldexp(std::numeric_limits<float>::min(), 100);
  return is_tiny ? std::copysign(0.0f, result) : result;
}

float chain_of_pairs(int64_t begin, int64_t end, const std::function<float(int64_t)>& a,
                     const std::function<float(int64_t)>& b) {
  float acc = 0;
  for (int64_t s = begin; s < end; s += 2) {
    acc = s + 1 < end ? flushing_fma(a(s + 1), b(s + 1), acc) : flushing_fma(0, 0, acc);
    acc = flushing_fma(a(s), b(s), acc);
  }
  return acc;
}

// The tree of the pieces chain(begin, end).
template <typename T, typename Chain>
T leaf_sum(int64_t begin, int64_t end, const Chain& chain) {
  if (begin >= end) {
    return T(0);
  }
  const int64_t pieces = (end - begin + kPiece - 1) / kPiece;
  return tree<T>(0, pieces,
                 [&](int64_t p) { return chain(begin + p * kPiece, std::min(begin + (p + 1) * kPiece, end)); });
}

}  // namespace

template <typename T>
T tree(int64_t begin, int64_t end, const std::function<T(int64_t)>& thing) {
  if (end - begin == 1) {
    return thing(begin);
  }
  int64_t half = 1;
  while (half * 2 < end - begin) {
    half *= 2;
  }
  const T left = tree(begin, begin + half, thing);
  const T right = tree(begin + half, end, thing);
  return left + right;
}

template <typename T>
T product(int64_t k, int64_t leaf, int64_t leaves, const std::function<T(int64_t)>& a,
          const std::function<T(int64_t)>& b) {
  const auto run = [&](int64_t begin, int64_t end) { return chain(begin, end, a, b); };
  return tree<T>(0, leaves, [&](int64_t i) { return leaf_sum<T>(i * leaf, std::min((i + 1) * leaf, k), run); });
}

float product_of_pairs(int64_t k, int64_t leaf, int64_t leaves, const std::function<float(int64_t)>& a,
                       const std::function<float(int64_t)>& b) {
  const auto run = [&](int64_t begin, int64_t end) { return chain_of_pairs(begin, end, a, b); };
  return tree<float>(0, leaves, [&](int64_t i) { return leaf_sum<float>(i * leaf, std::min((i + 1) * leaf, k), run); });
}

template float tree(int64_t, int64_t, const std::function<float(int64_t)>&);
template double tree(int64_t, int64_t, const std::function<double(int64_t)>&);
template float product(int64_t, int64_t, int64_t, const std::function<float(int64_t)>&,
                       const std::function<float(int64_t)>&);
template double product(int64_t, int64_t, int64_t, const std::function<double(int64_t)>&,
                        const std::function<double(int64_t)>&);

}  // namespace tessera::kernels::oracle
