// 16-bit numbers as the steps of tiles; for product_<isa>.cpp alone, after pack_<isa>.h.
#pragma once

#include "tessera/kernels/product/product_kernel.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tessera::kernels {
namespace {

#if defined(__x86_64__)

#define TESSERA_IN_REGISTER(value) "+v"(value)

// Denormals become zeros, as operands and as results.
inline void set_flushing(bool on) {
  constexpr unsigned kFlush = 0x8040;
  const unsigned control = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? control | kFlush : control & ~kFlush);
}

#else

#define TESSERA_IN_REGISTER(value) "+m"(value)

inline void set_flushing(bool) {}  // run_product refuses bfloat16 here

#endif

inline float float_of_bits(uint32_t bits) {
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
inline uint32_t bits_of_float(float value) {
  uint32_t result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}

// Each: the steps of two neighbouring numbers go to `to`, `apart` floats from one to the next.

// bfloat16, both in one step.
struct Pairs {
  static constexpr int kSteps = 1;
  static constexpr bool kFills = true;
  static void put(float* to, int64_t, uint16_t even, uint16_t odd) {
    const uint32_t bits = uint32_t{odd} << 16 | even;
    __builtin_memcpy(to, &bits, sizeof(bits));
  }
};

// bfloat16, the odd one first.
struct SwappedPairs {
  static constexpr int kSteps = 2;
  static constexpr bool kFills = true;
  static void put(float* to, int64_t apart, uint16_t even, uint16_t odd) {
    const uint32_t first = uint32_t{odd} << 16, second = uint32_t{even} << 16;
    __builtin_memcpy(to, &first, sizeof(first));
    __builtin_memcpy(to + apart, &second, sizeof(second));
  }
};

// float16, in their order.
struct Halves {
  static constexpr int kSteps = 2;
  static constexpr bool kFills = false;

  // Exponent and significand move to their places in a float. Denormals become what 0.5 + x lacks to 0.5.
  static float widened(uint16_t half) {
    const uint32_t bits = uint32_t{half} << 16, sign = bits & 0x80000000u, rest = bits << 1;
    const float normal = float_of_bits((rest >> 4) + 0x70000000u) * 0x1p-112f;
    const float denormal = float_of_bits((rest >> 17) | 0x3F000000u) - 0.5f;
    return float_of_bits(sign | bits_of_float(rest < 0x08000000u ? denormal : normal));
  }
  static void put(float* to, int64_t apart, uint16_t even, uint16_t odd) {
    to[0] = widened(even);
    to[apart] = widened(odd);
  }
  static void put_last(float* to, uint16_t last) { to[0] = widened(last); }
};

// A piece that ends with a number without a partner.
template <typename Format>
void put_last(float* to, int64_t apart, uint16_t last) {
  if constexpr (Format::kFills) {
    Format::put(to, apart, last, 0);
  } else {
    Format::put_last(to, last);
  }
}

// Lanes next to each other: steps are rows.
template <typename Format>
void spread_along(const detail::SpreadTask& task) {
  const uint16_t* from = task.from;
  float* to = task.to;
  for (int64_t p = 0; p < task.count; ++p) {
    int64_t s = 0;
    for (; s + 2 <= task.pieces[p].length; s += 2, from += 2 * task.step_stride, to += Format::kSteps * task.lanes) {
      const uint16_t* odd = from + task.step_stride;
      for (int64_t i = 0; i < task.lanes; ++i) {
        Format::put(to + i, task.lanes, from[i], odd[i]);
      }
    }
    if (s < task.pieces[p].length) {
      for (int64_t i = 0; i < task.lanes; ++i) {
        put_last<Format>(to + i, task.lanes, from[i]);
      }
      from += task.step_stride;
      to += (Format::kFills ? Format::kSteps : 1) * task.lanes;
    }
  }
}

// One lane.
template <typename Format>
void spread_lane(const detail::SpreadTask& task, const uint16_t* from, int64_t step_stride, float* to) {
  for (int64_t p = 0; p < task.count; ++p) {
    const int64_t pairs = task.pieces[p].length / 2;
    for (int64_t s = 0; s < pairs; ++s) {
      Format::put(to + s * Format::kSteps, 1, from[2 * s * step_stride], from[(2 * s + 1) * step_stride]);
    }
    from += 2 * pairs * step_stride;
    to += pairs * Format::kSteps;
    if (task.pieces[p].length % 2 != 0) {
      put_last<Format>(to, 1, *from);
      from += step_stride;
      to += Format::kFills ? Format::kSteps : 1;
    }
  }
}

template <typename Format>
void spread(const detail::SpreadTask& task) {
  if (task.lane_stride == 1) {
    spread_along<Format>(task);
    return;
  }
  for (int64_t i = 0; i < task.lanes; ++i) {
    const uint16_t* from = task.from + i * task.lane_stride;
    float* to = task.to + i * task.steps;
    // The usual stride as a number, for vectors.
    task.step_stride == 1 ? spread_lane<Format>(task, from, 1, to)
                          : spread_lane<Format>(task, from, task.step_stride, to);
  }
}

template <typename Format>
constexpr detail::Spread make_spread() {
  return {&spread<Format>, Format::kSteps, Format::kFills};
}

}  // namespace
}  // namespace tessera::kernels
