#include "tessera/kernels/product/product.h"

#include <algorithm>
#include <bit>
#include <new>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/product/product_kernel.h"
#include "tessera/kernels/product/product_order.h"

namespace tessera::kernels {

using detail::Block;
using detail::ceil_div;
using detail::NarrowKernel;
using detail::ProductKernel;
using detail::ProductKernels;
using detail::ProductOrder;
using detail::Spread;

namespace {

constexpr int64_t kBlockSteps = 1024;          // of k that are packed at a time
constexpr int64_t kPackedA = 96 * 1024;        // elements of A packed at a time: they stay in the second cache
constexpr int64_t kPackedB = 1 * 1024 * 1024;  // elements of B packed at a time
constexpr int64_t kNearB = 128 * 1024;         // elements that b spans per block, up to which the second cache holds it
constexpr int64_t kNearTiles = 24;             // row tiles up to which such a b is read where it lies
constexpr int64_t kParallelWork = 1 << 20;     // multiply-adds of a call from which on threads help

// Memory of one thread that is kept between calls.
class Buffer {
 public:
  ~Buffer() { release(); }

  template <typename T>
  T* get(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + kSlack);
    if (bytes > size_) {
      release();
      data_ = ::operator new(bytes, kAlignment);
      size_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr size_t kSlack = 64;  // packing writes up to a register too far

  void release() {
    ::operator delete(data_, kAlignment);
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Buffers {
  Buffer a, b, waiting, edge, spread;
};

const ProductKernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return detail::product_scalar();
    case Isa::kAvx2: return detail::product_avx2();
    case Isa::kAvx512:
    case Isa::kAvx512Bf16: return detail::product_avx512();
  }
  TESSERA_ASSERT(false, "Isa ", static_cast<int>(isa));
}

// What runs products of T: tiles of sums, and how T becomes their steps (null: it is one).
template <typename Sum>
struct Kernel {
  const ProductKernel<Sum>& tiles;
  const Spread* spread = nullptr;
};

template <typename T>
auto current_kernel() {
  const Isa isa = current_isa();
  const ProductKernels& kernels = kernels_of(isa);
  if constexpr (std::is_same_v<T, float>) {
    return Kernel<float>{kernels.f32};
  } else if constexpr (std::is_same_v<T, double>) {
    return Kernel<double>{kernels.f64};
  } else {
    const NarrowKernel& narrow = std::is_same_v<T, c10::Half> ? kernels.f16
                                 : isa == Isa::kAvx512Bf16    ? detail::product_avx512_bf16()
                                                              : kernels.bf16;
    return Kernel<float>{narrow.tiles, &narrow.spread};
  }
}

// Numbers as packing reads them: step s of lane i at data[i * lane_stride + s * step_stride].
template <typename T>
struct Lanes {
  const T* data;
  int64_t lane_stride, step_stride;
};

// One matrix of a product, or a part of one, on one thread.
template <typename T, typename Sum>
class SerialProduct {
 public:
  SerialProduct(const Kernel<Sum>& kernel, const Product<T, Sum>& product, const ProductOrder& order)
      : kernel_(kernel.tiles), spread_(kernel.spread), p_(product), order_(order) {
    choose_tile();
    choose_panels();
  }

  void run() {
    for (int64_t j = 0; j < p_.n; j += columns_) {
      for (int64_t i = 0; i < p_.m; i += rows_) {
        for (const Block& block : order_.blocks) {
          run_block(block, i, std::min(rows_, p_.m - i), j, std::min(columns_, p_.n - j));
        }
      }
    }
  }

 private:
  // Rows are dealt evenly to tiles; few rows make room for wide tiles.
  void choose_tile() {
    tile_rows_ = ceil_div(p_.m, ceil_div(p_.m, kernel_.rows));
    const int64_t registers = ceil_div(p_.n, kernel_.lanes);
    int64_t across = 1;
    const int64_t widest = p_.b.column == 1 ? 8 : 4;  // packing across rows writes narrow panels faster
    while (across < registers && across < widest && 2 * across * tile_rows_ <= kernel_.registers) {
      across *= 2;
    }
    tile_columns_ = across * kernel_.lanes;
  }

  void choose_panels() {
    const bool is_near = p_.b.row * order_.most_steps <= kNearB;
    is_b_packed_ = spread_ || p_.b.column != 1 || p_.m > tile_rows_ * (is_near ? kNearTiles : kernel_.unpacked_tiles);
    const int64_t tiles_down = std::max<int64_t>(1, kPackedA / (order_.most_steps + 1) / tile_rows_);
    rows_ = std::min(ceil_div(p_.m, tile_rows_), tiles_down) * tile_rows_;
    const int64_t tiles_across = std::max<int64_t>(1, kPackedB / (order_.steps + 1) / tile_columns_);
    columns_ = std::min(ceil_div(p_.n, tile_columns_), tiles_across) * tile_columns_;
    is_b_kept_ = rows_ < p_.m;
    const int64_t tiles = order_.blocks.size() == 1 ? 1 : (rows_ / tile_rows_) * (columns_ / tile_columns_);
    packed_a_ = buffers().a.template get<Sum>(rows_ * order_.most_steps);
    packed_b_ = buffers().b.template get<Sum>(is_b_kept_ ? columns_ * order_.steps : tile_columns_ * order_.most_steps);
    waiting_ = buffers().waiting.template get<Sum>(tiles * waiting_size());
    edge_ = buffers().edge.template get<Sum>(tile_rows_ * tile_columns_);
  }

  static Buffers& buffers() {
    static thread_local Buffers result;
    return result;
  }

  int64_t waiting_size() const { return std::max<int64_t>(order_.depth, 1) * tile_rows_ * tile_columns_; }

  void run_block(const Block& block, int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
    const T* first = p_.a.data + i0 * p_.a.row + block.first * p_.a.column;
    const Lanes<Sum> a = lanes_of({first, p_.a.row, p_.a.column}, rows, block);
    kernel_.pack({a.data, a.lane_stride, a.step_stride, rows, block.steps, packed_a_, tile_rows_, false});
    Sum* waiting = waiting_;
    for (int64_t j = 0; j < columns; j += tile_columns_) {
      const int64_t width = std::min(tile_columns_, columns - j);
      int64_t b_step = tile_columns_;
      const Sum* b = panel(block, j0 + j, j, width, i0 == 0, b_step);
      for (int64_t i = 0; i < rows; i += tile_rows_) {
        run_tile(block, i0 + i, std::min(tile_rows_, rows - i), j0 + j, width, packed_a_ + i * block.steps, b, b_step,
                 waiting);
        waiting += order_.blocks.size() == 1 ? 0 : waiting_size();
      }
    }
  }

  // Columns [column, column + width) of b for the steps of the block: where they lie, or packed, now if `is_first` use.
  const Sum* panel(const Block& block, int64_t column, int64_t slot, int64_t width, bool is_first, int64_t& b_step) {
    const T* from = p_.b.data + block.first * p_.b.row + column * p_.b.column;
    if constexpr (std::is_same_v<T, Sum>) {
      if (!is_b_packed_ && width == tile_columns_) {
        b_step = p_.b.row;
        return from;
      }
    }
    Sum* packed = is_b_kept_ ? packed_b_ + slot * order_.steps + block.first_step * tile_columns_ : packed_b_;
    if (is_first || !is_b_kept_) {
      const Lanes<Sum> b = lanes_of({from, p_.b.column, p_.b.row}, width, block);
      kernel_.pack({b.data, b.lane_stride, b.step_stride, width, block.steps, packed, tile_columns_, true});
    }
    return packed;
  }

  // The steps of a block from its elements: where they lie, or spread, until the next call.
  Lanes<Sum> lanes_of(const Lanes<T>& from, int64_t lanes, const Block& block) {
    if constexpr (std::is_same_v<T, Sum>) {
      return from;
    } else {
      Sum* to = buffers().spread.template get<Sum>(lanes * block.steps);
      spread_->run({reinterpret_cast<const uint16_t*>(from.data), from.lane_stride, from.step_stride, lanes,
                    order_.pieces.data() + block.first_piece, block.pieces, block.steps, to});
      return from.lane_stride == 1 ? Lanes<Sum>{to, 1, lanes} : Lanes<Sum>{to, block.steps, 1};
    }
  }

  void run_tile(const Block& block, int64_t i, int64_t rows, int64_t j, int64_t width, const Sum* a, const Sum* b,
                int64_t b_step, Sum* waiting) {
    const auto tile = kernel_.tile[rows][std::countr_zero(static_cast<uint64_t>(tile_columns_ / kernel_.lanes))];
    const bool is_last = &block == &order_.blocks.back();
    Sum* out = p_.out.data + i * p_.out.row + j * p_.out.column;
    detail::TileTask<Sum> task{order_.pieces.data() + block.first_piece,
                               block.pieces,
                               a,
                               b,
                               b_step,
                               waiting,
                               block.depth,
                               is_last ? out : nullptr,
                               p_.out.row,
                               width,
                               order_.has_empty_leaf,
                               p_.accumulate};
    if (!is_last || p_.out.column == 1) {
      tile(task);
      return;
    }
    task.out = edge_;
    task.out_row = tile_columns_;
    task.accumulate = false;
    tile(task);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        Sum& to = out[r * p_.out.row + c * p_.out.column];
        to = p_.accumulate ? to + edge_[r * tile_columns_ + c] : edge_[r * tile_columns_ + c];
      }
    }
  }

  const ProductKernel<Sum>& kernel_;
  const Spread* spread_;
  const Product<T, Sum>& p_;
  const ProductOrder& order_;
  int64_t tile_rows_ = 0, tile_columns_ = 0;  // of a tile
  int64_t rows_ = 0, columns_ = 0;            // of what is packed at a time, whole tiles
  bool is_b_packed_ = false;
  bool is_b_kept_ = false;  // packed panels of b serve more rows than one pass has
  Sum *packed_a_ = nullptr, *packed_b_ = nullptr, *waiting_ = nullptr, *edge_ = nullptr;
};

template <typename T, typename Sum>
void verify(const Product<T, Sum>& p) {
#if !defined(__x86_64__)
  TESSERA_CHECK(!(std::is_same_v<T, c10::BFloat16>), "[product] of bfloat16: its chains are known on x86-64 only");
#endif
  TESSERA_CHECK(p.batch >= 0 && p.m >= 0 && p.n >= 0 && p.k >= 0, "[product] ", p.batch, " times ", p.m, " x ", p.k,
                " times ", p.k, " x ", p.n, ": a size is negative");
  TESSERA_CHECK(p.leaf >= 0 && p.leaves >= 0, "[product] ", p.leaves, " leaves of ", p.leaf,
                ": must be 0 (the default) or more");
  TESSERA_CHECK(p.leaves == 0 || (p.leaf == 0 ? p.k == 0 || p.leaves == 1 : ceil_div(p.k, p.leaf) <= p.leaves),
                "[product] ", p.leaves, " leaves of ", p.leaf, " do not hold k = ", p.k);
}

// The same product with rows and columns in each other's place: fma(a, b, c) and fma(b, a, c) are one number.
template <typename T, typename Sum>
Product<T, Sum> transposed(const Product<T, Sum>& p) {
  Product<T, Sum> result = p;
  std::swap(result.m, result.n);
  result.a = {p.b.data, p.b.column, p.b.row, p.b.batch};
  result.b = {p.a.data, p.a.column, p.a.row, p.a.batch};
  std::swap(result.out.row, result.out.column);
  return result;
}

// Cycles, roughly: registers of sums times k at two a cycle, and elements of `out` that cannot be written by registers.
template <typename T, typename Sum>
int64_t cost_of(const Product<T, Sum>& p, int64_t lanes) {
  return p.m * ceil_div(p.n, lanes) * p.k + (p.out.column == 1 ? 0 : 3 * p.m * p.n);
}

template <typename T, typename Sum>
Product<T, Sum> part_of(const Product<T, Sum>& p, int64_t matrix, int64_t i, int64_t rows, int64_t j, int64_t columns) {
  Product<T, Sum> result = p;
  result.batch = 1;
  result.m = rows;
  result.n = columns;
  result.a.data += matrix * p.a.batch + i * p.a.row;
  result.b.data += matrix * p.b.batch + j * p.b.column;
  result.out.data += matrix * p.out.batch + i * p.out.row + j * p.out.column;
  return result;
}

// How many parts each dim of a matrix is cut into, so that `parts` parts or more are of a good shape.
struct Grid {
  int64_t down = 1, across = 1;
};

template <typename T, typename Sum>
Grid make_grid(const ProductKernel<Sum>& kernel, const Product<T, Sum>& p, int64_t parts) {
  Grid grid;
  const int64_t most_down = ceil_div(p.m, kernel.rows), most_across = ceil_div(p.n, 2 * kernel.lanes);
  while (grid.down * grid.across < parts && (grid.down < most_down || grid.across < most_across)) {
    const bool is_tall = p.m * grid.across > p.n * grid.down;
    ++(grid.across >= most_across || (is_tall && grid.down < most_down) ? grid.down : grid.across);
  }
  return grid;
}

template <typename T, typename Sum>
void run(const Product<T, Sum>& given) {
  verify(given);
  if (given.batch == 0 || given.m == 0 || given.n == 0) {
    return;
  }
  const Kernel<Sum> running = current_kernel<T>();
  const ProductKernel<Sum>& kernel = running.tiles;
  const Product<T, Sum> other = transposed(given);
  const Product<T, Sum>& p = cost_of(other, kernel.lanes) < cost_of(given, kernel.lanes) ? other : given;
  const int64_t leaf = p.leaf == 0 ? std::max<int64_t>(p.k, 1) : p.leaf;
  const ProductOrder order =
      detail::make_order(p.k, leaf, p.leaves, p.m <= 2 * kernel.rows ? kChainSteps : kBlockSteps, running.spread);
  const bool is_small = p.batch * p.m * p.n * (p.k + 1) < kParallelWork;
  const int64_t threads = is_small ? 1 : thread_count();
  const Grid grid = make_grid(kernel, p, ceil_div(threads, p.batch));
  const int64_t rows = ceil_div(ceil_div(p.m, grid.down), kernel.rows) * kernel.rows;
  const int64_t columns = ceil_div(ceil_div(p.n, grid.across), 2 * kernel.lanes) * 2 * kernel.lanes;
  const int64_t down = ceil_div(p.m, rows), across = ceil_div(p.n, columns), parts = p.batch * down * across;
  parallel_for(parts, threads == 1 ? parts : 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t i = part / across % down * rows, j = part % across * columns;
      const auto piece = part_of(p, part / across / down, i, std::min(rows, p.m - i), j, std::min(columns, p.n - j));
      SerialProduct<T, Sum>(running, piece, order).run();
    }
  });
}

}  // namespace

void run_product(const Product<float>& product) { run(product); }

void run_product(const Product<double>& product) { run(product); }

void run_product(const Product<c10::BFloat16, float>& product) { run(product); }

void run_product(const Product<c10::Half, float>& product) { run(product); }

}  // namespace tessera::kernels
