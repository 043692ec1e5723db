// Packing for the canonical product on any instruction set; for product_<isa>.cpp alone, after pack_<isa>.h.
#pragma once

#include <utility>

#include "tessera/kernels/product/product_kernel.h"

namespace tessera::kernels {
namespace {

using detail::PackTask;

// Rows become steps: squares of 16 bytes change sides inside a register, which holds one or two of them. Narrower than
// the widest registers on purpose: rows a power of two apart share a set of the first cache, which holds eight.
template <typename T>
struct Square {
  static constexpr int kBytes = TESSERA_REGISTER_BYTES < 32 ? 16 : 32;
  static constexpr int kSide = 16 / sizeof(T), kLanes = kBytes / sizeof(T);
  typedef T Half __attribute__((vector_size(16)));
  typedef T V __attribute__((vector_size(kBytes)));
  using Lanes = std::make_integer_sequence<int, kLanes>;

  V row[kSide];

  void load(const T* const (&from)[kLanes], int64_t step) {
#pragma GCC unroll 4
    for (int i = 0; i < kSide; ++i) {
      Half parts[kLanes / kSide];
      for (int part = 0; part < kLanes / kSide; ++part) {
        __builtin_memcpy(&parts[part], from[i + part * kSide] + step, 16);
      }
      if constexpr (kLanes == kSide) {
        row[i] = parts[0];
      } else {
        row[i] = join(parts[0], parts[1], Lanes{});
      }
    }
  }

  void transpose() {
    if constexpr (kSide == 4) {
      const Square half{
          {zip<1, 0>(row[0], row[1]), zip<1, 2>(row[0], row[1]), zip<1, 0>(row[2], row[3]), zip<1, 2>(row[2], row[3])}};
      *this = {{zip<2, 0>(half.row[0], half.row[2]), zip<2, 2>(half.row[0], half.row[2]),
                zip<2, 0>(half.row[1], half.row[3]), zip<2, 2>(half.row[1], half.row[3])}};
    } else {
      *this = {{zip<1, 0>(row[0], row[1]), zip<1, 1>(row[0], row[1])}};
    }
  }

  void store(T* packed, int64_t width) const {
#pragma GCC unroll 4
    for (int i = 0; i < kSide; ++i) {
      __builtin_memcpy(packed + i * width, &row[i], kBytes);
    }
  }

 private:
  template <int... L>
  static V join(Half low, Half high, std::integer_sequence<int, L...>) {
    return __builtin_shufflevector(low, high, L...);
  }

  // In each 16 bytes: runs of `Run` numbers of a and of b in turn, from number `From` on.
  template <int Run, int From, int... L>
  static V zip(V a, V b, std::integer_sequence<int, L...>) {
    return __builtin_shufflevector(
        a, b, (L / Run % 2 * kLanes + L / kSide * kSide + From + L % kSide / (2 * Run) * Run + L % Run)...);
  }
  template <int Run, int From>
  static V zip(V a, V b) {
    return zip<Run, From>(a, b, Lanes{});
  }
};

// Some lanes of a panel whose steps lie next to each other. Lanes of the register beyond the last repeat it.
template <typename T>
void pack_across(const PackTask<T>& task, int64_t begin, int64_t end, int64_t first, int64_t lanes, int64_t width,
                 T* packed) {
  constexpr int kLanes = Square<T>::kLanes, kSide = Square<T>::kSide;
  const T* from[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    from[i] = task.from + (first + (i < lanes ? i : lanes - 1)) * task.lane_stride;
  }
  int64_t step = begin;
  for (; step + kSide <= end; step += kSide) {
    Square<T> square;
    square.load(from, step);
    square.transpose();
    square.store(packed + step * width, width);
  }
  for (; step < end; ++step) {
    for (int i = 0; i < kLanes; ++i) {
      packed[step * width + i] = from[i][step];
    }
  }
}

// One step of a panel whose lanes lie next to each other. A register may spill over the end of the step unless it is
// `exact`.
template <typename T>
void pack_step(const T* from, int64_t lanes, T* to, int64_t width, bool exact) {
  constexpr int64_t kLanes = kWidth<T>;
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = lanes - i;
    const Pack<T> value = left >= kLanes ? load(from + i)
                          : left > 0     ? load_first(from + i, left, Pack<T>{})
                                         : Pack<T>{};
    if (exact && width - i < kLanes) {
      store_first(to + i, value, width - i);
    } else {
      store(to + i, value);
    }
  }
}

// Panels whose lanes lie next to each other, a few steps at a time, because panels share the steps' cache lines.
template <typename T>
void pack_along(const PackTask<T>& task) {
  constexpr int64_t kSteps = 4, kAhead = 16;
  for (int64_t begin = 0; begin < task.steps; begin += kSteps) {
    const int64_t end = task.steps - begin < kSteps ? task.steps : begin + kSteps;
    for (int64_t first = 0; first < task.lanes; first += task.width) {
      const int64_t lanes = task.lanes - first, width = task.is_padded || lanes > task.width ? task.width : lanes;
      T* packed = task.packed + first * task.steps;
      for (int64_t step = begin; step < end; ++step) {
        const T* row = task.from + step * task.step_stride + first;
        __builtin_prefetch(row + kAhead * task.step_stride);
        pack_step(row, lanes, packed + step * width, width, step + 1 == task.steps);
      }
    }
  }
}

template <typename T>
void pack_strided(const PackTask<T>& task, int64_t first, int64_t lanes, int64_t width, T* packed) {
  for (int64_t step = 0; step < task.steps; ++step) {
    const T* from = task.from + first * task.lane_stride + step * task.step_stride;
    for (int64_t i = 0; i < width; ++i) {
      packed[step * width + i] = i < lanes ? from[i * task.lane_stride] : T(0);
    }
  }
}

// A register that reaches beyond a step's width spills into the next step's first lanes, which are written after it. A
// few steps at a time, because their cache lines are written again by the next lanes.
template <typename T>
void pack_panel_across(const PackTask<T>& task, int64_t first, int64_t lanes, int64_t width, T* packed) {
  constexpr int64_t kLanes = Square<T>::kLanes, kSteps = 128;
  for (int64_t begin = 0; begin < task.steps; begin += kSteps) {
    const int64_t end = task.steps - begin < kSteps ? task.steps : begin + kSteps;
    for (int64_t i = (width - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {
      if (i < lanes) {
        pack_across(task, begin, end, first + i, lanes - i, width, packed + i);
      } else {
        for (int64_t step = begin; step < end; ++step) {
          for (int64_t lane = i; lane < i + kLanes; ++lane) {
            packed[step * width + lane] = T(0);
          }
        }
      }
    }
  }
}

template <typename T>
void pack(const PackTask<T>& task) {
  if (task.lane_stride == 1) {
    pack_along(task);
    return;
  }
  for (int64_t first = 0; first < task.lanes; first += task.width) {
    const int64_t left = task.lanes - first, lanes = left < task.width ? left : task.width;
    const int64_t width = task.is_padded ? task.width : lanes;
    const auto pack_panel = task.step_stride == 1 ? &pack_panel_across<T> : &pack_strided<T>;
    pack_panel(task, first, lanes, width, task.packed + first * task.steps);
  }
}

}  // namespace
}  // namespace tessera::kernels
