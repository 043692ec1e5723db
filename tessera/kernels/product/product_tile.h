// Tiles of the canonical product on any instruction set; for product_<isa>.cpp alone, after pack_<isa>.h.
#pragma once

#include <utility>

#include "tessera/kernels/product/product_kernel.h"
#include "tessera/kernels/product/product_pack.h"
#include "tessera/kernels/product/product_spread.h"

namespace tessera::kernels {
namespace {

using detail::Piece;
using detail::TileTask;

// How chains of T run: a step adds the product of two numbers.
template <typename Number>
struct Steps {
  using T = Number;

  static Pack<T> everywhere(T value) { return splat(value); }
  static Pack<T> step(Pack<T> left, Pack<T> right, Pack<T> sum) { return fma(left, right, sum); }
  template <typename Sums>
  static void begin(Sums&) {}
  template <typename Sums>
  static void end(Sums&) {}
};

// Likewise, and denormals are zeros in its steps, not in the tree above: as vdpbf16ps does it, whatever the float
// environment.
struct FlushingSteps : Steps<float> {
  // The processor's mode changes neither before nor after what is done with the sums.
  template <typename Sums>
  static void begin(Sums& sums) {
    set_flushing(true);
    hold(sums);
  }
  template <typename Sums>
  static void end(Sums& sums) {
    hold(sums);
    set_flushing(false);
  }

 private:
  template <typename Sums>
  static void hold(Sums& sums) {
    for (auto& row : sums) {
      for (auto& sum : row) {
        asm volatile("" : TESSERA_IN_REGISTER(sum));
      }
    }
  }
};

// A tile of M rows and N registers across. The sums are the chain; a finished chain closes subtrees, then waits.
template <typename Chain, int M, int N>
struct Tile {
  using T = typename Chain::T;
  using V = Pack<T>;
  static constexpr int kLanes = kWidth<T>;
  static constexpr int kLine = 64 / sizeof(V);  // registers of a cache line

  V sum[M][N];

  void run_chain(int64_t steps, const T* a, const T* b, int64_t b_step) {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        sum[i][j] = V{};
      }
    }
    Chain::begin(sum);
#pragma GCC unroll 2
    for (int64_t step = 0; step < steps; ++step, a += M, b += b_step) {
      V right[N];
      if constexpr (N >= 4) {  // few rows: b comes from afar, and its rows are no stream that the processor sees
#pragma GCC unroll 8
        for (int j = 0; j < N; j += kLine) {
          __builtin_prefetch(b + 8 * b_step + j * kLanes);
        }
      }
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        right[j] = load(b + j * kLanes);
      }
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
        const V left = Chain::everywhere(a[i]);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
          sum[i][j] = Chain::step(left, right[j], sum[i][j]);
        }
      }
    }
    Chain::end(sum);
  }

  void add_from(const T* from) {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        sum[i][j] = load(from + (i * N + j) * kLanes) + sum[i][j];
      }
    }
  }

  void put(T* to) const {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        store(to + (i * N + j) * kLanes, sum[i][j]);
      }
    }
  }

  void add_zero() {
    for (auto& row : sum) {
      for (V& value : row) {
        value = value + V{};
      }
    }
  }

  void finish(T* out, int64_t out_row, int64_t columns, bool accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        T* to = out + i * out_row + j * kLanes;
        const int64_t left = columns - j * kLanes;
        if (left >= kLanes) {
          store(to, accumulate ? load(to) + sum[i][j] : sum[i][j]);
        } else if (left > 0) {
          store_first(to, accumulate ? load_first(to, left, V{}) + sum[i][j] : sum[i][j], left);
        }
      }
    }
  }

  static void run(const TileTask<T>& task) {
    constexpr int64_t kSize = M * N * kLanes;
    Tile tile;
    T* top = task.waiting + task.depth * kSize;
    const T* a = task.a;
    const T* b = task.b;
    const Piece* last = task.pieces + task.count - 1;
    for (const Piece* piece = task.pieces;; ++piece) {
      tile.run_chain(piece->steps, a, b, task.b_step);
      for (int32_t closes = piece->closes; closes > 0; --closes) {
        tile.add_from(top -= kSize);
      }
      if (piece == last) {
        break;
      }
      tile.put(top);
      top += kSize;
      a += piece->steps * M;
      b += piece->steps * task.b_step;
    }
    if (task.out == nullptr) {
      tile.put(top);
      return;
    }
    if (task.add_zero) {
      tile.add_zero();
    }
    tile.finish(task.out, task.out_row, task.columns, task.accumulate);
  }
};

template <typename Chain, int Rows, int Registers, int M, int W>
constexpr typename detail::ProductKernel<typename Chain::T>::Tile choose_tile() {
  if constexpr (M >= 1 && M <= Rows && M << W <= Registers) {
    return &Tile<Chain, M, 1 << W>::run;
  } else {
    return nullptr;
  }
}

template <typename Chain, int Rows, int Registers, int... I>
constexpr detail::ProductKernel<typename Chain::T> make_kernel(int64_t unpacked_tiles,
                                                               std::integer_sequence<int, I...>) {
  return {kWidth<typename Chain::T>,
          Rows,
          Registers,
          unpacked_tiles,
          {{choose_tile<Chain, Rows, Registers, I, 0>(), choose_tile<Chain, Rows, Registers, I, 1>(),
            choose_tile<Chain, Rows, Registers, I, 2>(), choose_tile<Chain, Rows, Registers, I, 3>()}...},
          &pack<typename Chain::T>};
}

using TileRows = std::make_integer_sequence<int, detail::kMostRows + 1>;

// All element types, with tiles of at most `Rows` rows and `Registers` sums.
template <int Rows, int Registers>
constexpr detail::ProductKernels make_kernels(int64_t unpacked_tiles) {
  const auto f32 = make_kernel<Steps<float>, Rows, Registers>(unpacked_tiles, TileRows{});
  return {
      .f32 = f32,
      .f64 = make_kernel<Steps<double>, Rows, Registers>(unpacked_tiles, TileRows{}),
      .bf16 = {make_kernel<FlushingSteps, Rows, Registers>(unpacked_tiles, TileRows{}), make_spread<SwappedPairs>()},
      .f16 = {f32, make_spread<Halves>()}};
}

}  // namespace
}  // namespace tessera::kernels
