// Pack<T>: one vector register of T, with the operators of the compiler's vector types (+ - * / < ?: and a scalar
// operand).
//
// For the sources of one instruction set alone, through pack_<isa>.h, which sets the width of a register and adds:
//   fma(a, b, c)             rounds once
//   sqrt(a)
//   max(a, b), min(a, b)     a > b ? a : b and a < b ? a : b, so that b passes if either is NaN
//   load_first(from, count, fill), store_first(to, value, count)    the first `count` lanes, touching no other memory
//   keep_first(count, value, other)    the first `count` lanes of value, the others of other
//   scale(a, n)              a * 2^n rounded once, for whole n (up to 250 for float, 2000 for double, either sign) and
//   a so
//                            that a and a * 2^(n/2) are normal, or zero, or NaN
// Everything is in an anonymous namespace and calls no function of the standard library: whatever is compiled here runs
// on one instruction set only, and no other file may get to share it.
#pragma once

#include <cstdint>

namespace tessera::kernels {
namespace {

template <typename T>
struct PackTypes;
template <>
struct PackTypes<float> {
  using Pack = float __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Bits = int32_t __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Unsigned = uint32_t __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Unaligned = float __attribute__((vector_size(TESSERA_REGISTER_BYTES), aligned(4), may_alias));
  static constexpr int kMantissaBits = 23;
  static constexpr int32_t kOne = 0x3F800000;  // the bits of 1
  static constexpr float kRounder =
      0x1.8p23f;  // x + kRounder - kRounder is x rounded to the nearest integer, ties to even
};
template <>
struct PackTypes<double> {
  using Pack = double __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Bits = int64_t __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Unsigned = uint64_t __attribute__((vector_size(TESSERA_REGISTER_BYTES)));
  using Unaligned = double __attribute__((vector_size(TESSERA_REGISTER_BYTES), aligned(8), may_alias));
  static constexpr int kMantissaBits = 52;
  static constexpr int64_t kOne = 0x3FF0000000000000;
  static constexpr double kRounder = 0x1.8p52;
};

template <typename T>
using Pack = typename PackTypes<T>::Pack;
template <typename T>
using Bits = typename PackTypes<T>::Bits;

// Lanes of one register.
template <typename T>
constexpr int kWidth = TESSERA_REGISTER_BYTES / static_cast<int>(sizeof(T));

template <typename T>
inline Pack<T> splat(T value) {
  return value - Pack<T>{};
}

template <typename T>
inline Pack<T> load(const T* from) {
  return *reinterpret_cast<const typename PackTypes<T>::Unaligned*>(from);
}

template <typename T>
inline void store(T* to, Pack<T> value) {
  *reinterpret_cast<typename PackTypes<T>::Unaligned*>(to) = value;
}

// 2^n for whole n of a normal result.
template <typename T>
inline Pack<T> power_of_two(Pack<T> n) {
  using Types = PackTypes<T>;
  const Bits<T> low = reinterpret_cast<Bits<T>>(n + Types::kRounder) << Types::kMantissaBits;
  return reinterpret_cast<Pack<T>>(low + Types::kOne);
}

// scale() where no instruction does it. The first product is exact, so the second rounds the true value.
template <typename T>
inline Pack<T> scale_in_two_steps(Pack<T> a, Pack<T> n) {
  const Pack<T> half = (n * T(0.5) + PackTypes<T>::kRounder) - PackTypes<T>::kRounder;
  return (a * power_of_two<T>(half)) * power_of_two<T>(n - half);
}

}  // namespace
}  // namespace tessera::kernels
