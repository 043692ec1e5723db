// Random products for tests: memory with walls, strides of every kind, values of every kind.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/kernels/product/product.h"

namespace tessera::kernels {

// Memory between two pages that nobody may touch. `end` gives the last `count` elements, `begin` the first.
class Walled {
 public:
  Walled() {
    data_ = static_cast<char*>(
        mmap(nullptr, kSize + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data_ == MAP_FAILED || mprotect(data_, kPage, PROT_NONE) != 0 ||
        mprotect(data_ + kPage + kSize, kPage, PROT_NONE) != 0) {
      throw std::runtime_error("no memory with walls");
    }
  }
  ~Walled() { munmap(data_, kSize + 2 * kPage); }
  Walled(const Walled&) = delete;
  Walled& operator=(const Walled&) = delete;

  template <typename T>
  T* place(int64_t count, bool at_end) {
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > kSize) {
      throw std::runtime_error("walled memory is too small");
    }
    return reinterpret_cast<T*>(data_ + kPage + (at_end ? kSize - bytes : 0));
  }

 private:
  static constexpr int64_t kPage = 65536, kSize = 16 << 20;
  char* data_;
};

// True if the bits are equal, or both are NaN.
template <typename T>
bool is_same(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
}

// A stack of matrices in walled memory: the elements, and how many elements of memory they span.
template <typename T>
struct PlacedMatrices {
  T* data = nullptr;
  int64_t span = 0;
  int64_t rows = 0, columns = 0;
  Matrices<T> matrices;

  T& at(int64_t batch, int64_t i, int64_t j) const {
    return data[batch * matrices.batch + i * matrices.row + j * matrices.column];
  }
  Matrices<const T> as_const() const { return {matrices.data, matrices.row, matrices.column, matrices.batch}; }
};

class RandomCases {
 public:
  explicit RandomCases(uint32_t seed) : engine_(seed) {}

  int64_t number(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool chance(int64_t percent) { return number(1, 100) <= percent; }

  // Often small, sometimes 0, rarely up to `most`.
  int64_t size(int64_t most) {
    const int64_t kind = number(0, 9);
    return kind == 0 ? number(0, 1) : kind < 7 ? number(1, std::min<int64_t>(most, 36)) : number(1, most);
  }

  // Row-major, column-major or neither, with gaps or without.
  template <typename T>
  PlacedMatrices<T> place(Walled& memory, int64_t batch, int64_t rows, int64_t columns) {
    PlacedMatrices<T> result;
    result.rows = rows;
    result.columns = columns;
    const int64_t kind = number(0, 5), gap = chance(50) ? 0 : number(1, 9), step = kind == 5 ? number(2, 3) : 1;
    Matrices<T>& m = result.matrices;
    if (kind % 2 == 0) {
      m.column = step;
      m.row = columns * step + gap;
    } else {
      m.row = step;
      m.column = rows * step + gap;
    }
    m.batch = std::max(rows * m.row, columns * m.column) + (chance(50) ? 0 : number(1, 5));
    result.span =
        batch * rows * columns == 0 ? 0 : (batch - 1) * m.batch + (rows - 1) * m.row + (columns - 1) * m.column + 1;
    m.data = result.data = memory.place<T>(result.span, chance(70));
    return result;
  }

  // Of many magnitudes; in `special` cases also zeros of both signs, denormals, infinities and NaN.
  template <typename T>
  T value(bool special) {
    using Limits = std::numeric_limits<T>;
    const T sign = chance(50) ? T(1) : T(-1);
    if (special && chance(20)) {
      const T values[] = {T(0),          Limits::denorm_min(), Limits::min() * T(0.37),
                          Limits::min(), Limits::max(),        Limits::infinity()};
      const int64_t which = number(0, 60);
      return which == 60 ? Limits::quiet_NaN() : sign * values[which < 50 ? which % 4 : 4 + which % 2];
    }
    return sign * static_cast<T>(std::ldexp(std::uniform_real_distribution<double>(1, 2)(engine_),
                                            static_cast<int>(number(-6, 6))));
  }

  template <typename T>
  void fill(const PlacedMatrices<T>& to, bool special) {
    for (int64_t i = 0; i < to.span; ++i) {
      to.data[i] = value<T>(special);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace tessera::kernels
