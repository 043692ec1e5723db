// Random rows at random places of memory, and bits to compare.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "tessera/base/hash.h"
#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels::test {

inline bool is_full() { return std::getenv("TESSERA_FULL") != nullptr; }

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  bool one_in(int64_t n) { return below(n) == 0; }

  template <typename T>
  std::vector<T> normal(int64_t n, double scale = 1) {
    std::normal_distribution<double> draw(0, scale);
    std::vector<T> values(static_cast<size_t>(n));
    for (T& value : values) {
      value = static_cast<T>(draw(engine_));
    }
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

// Rows of an array that begins anywhere and may have gaps; what lies around them is NaN, to be neither read nor
// written.
template <typename T>
class Placed {
 public:
  Placed(Random& random, Shape shape, const std::vector<T>& values)
      : shape_(shape),
        offset_(random.below(20)),
        stride_(shape.n + (random.one_in(2) ? 0 : random.below(9))),
        memory_(static_cast<size_t>(offset_ + shape.rows * stride_ + 20), static_cast<T>(NAN)) {
    for (int64_t r = 0; r < shape.rows && !values.empty(); ++r) {
      std::copy_n(values.data() + r * shape.n, shape.n, memory_.data() + offset_ + r * stride_);
    }
  }
  Placed(Random& random, Shape shape) : Placed(random, shape, {}) {}

  Rows<const T> in() const { return {memory_.data() + offset_, stride_}; }
  Rows<T> out() { return {memory_.data() + offset_, stride_}; }

  // The rows one after the other. Fails the test if anything around them was written.
  std::vector<T> values() const {
    std::vector<T> values;
    std::vector<bool> inside(memory_.size());
    for (int64_t r = 0; r < shape_.rows; ++r) {
      for (int64_t i = 0; i < shape_.n; ++i) {
        inside[static_cast<size_t>(offset_ + r * stride_ + i)] = true;
        values.push_back(in().row(r)[i]);
      }
    }
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!inside[i] && memory_[i] == memory_[i]) {
        ADD_FAILURE() << "written outside of the rows, at " << i;
      }
    }
    return values;
  }

 private:
  Shape shape_;
  int64_t offset_, stride_;
  std::vector<T> memory_;
};

// Equal bits, where all NaN count as one.
template <typename T>
bool same_bits(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return (a != a && b != b) || std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b);
}

// The first place where two arrays differ, or -1.
template <typename T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) {
    return static_cast<int64_t>(std::min(a.size(), b.size()));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

template <typename T>
uint64_t hash_of(const std::vector<T>& values) {
  uint64_t hash = 0;
  for (T value : values) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    hash = base::hash_combine(hash, value == value ? std::bit_cast<Bits>(value) : Bits{1});
  }
  return hash;
}

}  // namespace tessera::kernels::test
