// What an instruction set gives the canonical product: one tile of the result, and packing. Internal to this floor.
#pragma once

#include <cstdint>

namespace tessera::kernels::detail {

// One chain, and how many of the newest waiting sums are added to it, newest first, when it ends.
struct Piece {
  int32_t steps = 0;  // that tiles take
  int32_t closes = 0;
  int32_t length = 0;  // in k
};

// A tile of rows x (registers * lanes) elements of the result, over some consecutive pieces.
template <typename T>
struct TileTask {
  const Piece* pieces;
  int64_t count;
  const T* a;  // element (i, step) at a[step * rows + i]
  const T* b;  // element (step, j) at b[step * b_step + j]
  int64_t b_step;
  T* waiting;     // the stack of waiting sums, each a whole tile, row by row
  int64_t depth;  // how many wait before the first piece
  T* out;         // where the sum goes, row by row; null if more pieces follow, and all sums wait
  int64_t out_row;
  int64_t columns;  // how many of the tile's columns `out` has
  bool add_zero;    // + 0 after the tree: the empty leaves
  bool accumulate;  // out + sum
};

// Lanes (rows of a, columns of b) into panels of `width`, one behind the other: lane p * width + i of step s goes to
// packed[p * width * steps + s * w + i], w the width of panel p. The last panel is as wide as the lanes that are left,
// or padded to `width` with numbers of no meaning. Up to a register beyond the end of `packed` may be overwritten.
template <typename T>
struct PackTask {
  const T* from;
  int64_t lane_stride;
  int64_t step_stride;
  int64_t lanes;
  int64_t steps;
  T* packed;
  int64_t width;
  bool is_padded;
};

constexpr int kMostRows = 14;
constexpr int kWidths = 4;  // tiles are 1, 2, 4 or 8 registers wide

template <typename T>
struct ProductKernel {
  using Tile = void (*)(const TileTask<T>&);

  int64_t lanes;                      // of a register
  int64_t rows;                       // of the tallest tile
  int64_t registers;                  // sums of a tile, at most
  int64_t unpacked_tiles;             // row tiles up to which b is better read where it lies than packed
  Tile tile[kMostRows + 1][kWidths];  // by rows and log2 of registers across; null where rows * across > registers
  void (*pack)(const PackTask<T>&);
};

// Lanes of 16-bit numbers over some consecutive pieces, for packing as floats.
struct SpreadTask {
  const uint16_t* from;
  int64_t lane_stride;
  int64_t step_stride;
  int64_t lanes;
  const Piece* pieces;
  int64_t count;
  int64_t steps;  // of all pieces
  float* to;      // step s of lane i at to[s * lanes + i] if lane_stride is 1, else at to[i * steps + s]
};

// How 16-bit numbers become the steps of tiles.
struct Spread {
  void (*run)(const SpreadTask&);
  int64_t steps_of_pair;  // 1: a step is the bits of two numbers, the first in the low half
  bool fills;             // a piece of odd length ends with +0

  int64_t steps_of(int64_t length) const { return fills ? (length + 1) / 2 * steps_of_pair : length; }
};

struct NarrowKernel {
  ProductKernel<float> tiles;
  Spread spread;
};

struct ProductKernels {
  ProductKernel<float> f32;
  ProductKernel<double> f64;
  NarrowKernel bf16;  // chains flush denormals
  NarrowKernel f16;
};

const ProductKernels& product_scalar();
const ProductKernels& product_avx2();  // these three only where is_supported() says so
const ProductKernels& product_avx512();
const NarrowKernel& product_avx512_bf16();

}  // namespace tessera::kernels::detail
