#include "tests/unit/kernels/oracle.h"

#include <algorithm>
#include <cmath>

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

template <typename T>
T leaf_sum(int64_t begin, int64_t end, const std::function<T(int64_t)>& a, const std::function<T(int64_t)>& b) {
  if (begin >= end) {
    return T(0);
  }
  const int64_t pieces = (end - begin + kPiece - 1) / kPiece;
  return tree<T>(0, pieces,
                 [&](int64_t p) { return chain(begin + p * kPiece, std::min(begin + (p + 1) * kPiece, end), a, b); });
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
  return tree<T>(0, leaves, [&](int64_t i) { return leaf_sum(i * leaf, std::min((i + 1) * leaf, k), a, b); });
}

template float tree(int64_t, int64_t, const std::function<float(int64_t)>&);
template double tree(int64_t, int64_t, const std::function<double(int64_t)>&);
template float product(int64_t, int64_t, int64_t, const std::function<float(int64_t)>&,
                       const std::function<float(int64_t)>&);
template double product(int64_t, int64_t, int64_t, const std::function<double(int64_t)>&,
                        const std::function<double(int64_t)>&);

}  // namespace tessera::kernels::oracle
