#include "tessera/kernels/product/product.h"

#include <algorithm>
#include <bit>
#include <new>

#include "tessera/base/error.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/product/product_kernel.h"
#include "tessera/kernels/product/product_order.h"

namespace tessera::kernels {

using detail::Block;
using detail::ProductKernel;
using detail::ProductKernels;
using detail::ProductOrder;

namespace {

constexpr int64_t kBlockSteps = 1024;          // of k that are packed at a time
constexpr int64_t kPackedA = 96 * 1024;        // elements of A packed at a time: they stay in the second cache
constexpr int64_t kPackedB = 1 * 1024 * 1024;  // elements of B packed at a time
constexpr int64_t kNearB = 128 * 1024;         // elements that b spans per block, up to which the second cache holds it
constexpr int64_t kNearTiles = 24;             // row tiles up to which such a b is read where it lies
constexpr int64_t kParallelWork = 1 << 20;     // multiply-adds of a call from which on threads help

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  Buffer a, b, waiting, edge;
};

const ProductKernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return detail::product_scalar();
    case Isa::kAvx2: return detail::product_avx2();
    case Isa::kAvx512: return detail::product_avx512();
  }
  TESSERA_ASSERT(false, "Isa ", static_cast<int>(isa));
}

template <typename T>
const ProductKernel<T>& current_kernel() {
  const ProductKernels& kernels = kernels_of(current_isa());
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.f32;
  } else {
    return kernels.f64;
  }
}

// One matrix of a product, or a part of one, on one thread.
template <typename T>
class SerialProduct {
 public:
  SerialProduct(const ProductKernel<T>& kernel, const Product<T>& product, const ProductOrder& order)
      : kernel_(kernel), p_(product), order_(order) {
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
    is_b_packed_ = p_.b.column != 1 || p_.m > tile_rows_ * (is_near ? kNearTiles : kernel_.unpacked_tiles);
    const int64_t tiles_down = std::max<int64_t>(1, kPackedA / (order_.most_steps + 1) / tile_rows_);
    rows_ = std::min(ceil_div(p_.m, tile_rows_), tiles_down) * tile_rows_;
    const int64_t tiles_across = std::max<int64_t>(1, kPackedB / (p_.k + 1) / tile_columns_);
    columns_ = std::min(ceil_div(p_.n, tile_columns_), tiles_across) * tile_columns_;
    is_b_kept_ = rows_ < p_.m;
    const int64_t tiles = order_.blocks.size() == 1 ? 1 : (rows_ / tile_rows_) * (columns_ / tile_columns_);
    packed_a_ = buffers().a.template get<T>(rows_ * order_.most_steps);
    packed_b_ = buffers().b.template get<T>(is_b_kept_ ? columns_ * p_.k : tile_columns_ * order_.most_steps);
    waiting_ = buffers().waiting.template get<T>(tiles * waiting_size());
    edge_ = buffers().edge.template get<T>(tile_rows_ * tile_columns_);
  }

  static Buffers& buffers() {
    static thread_local Buffers result;
    return result;
  }

  int64_t waiting_size() const { return std::max<int64_t>(order_.depth, 1) * tile_rows_ * tile_columns_; }

  void run_block(const Block& block, int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
    const T* a = p_.a.data + i0 * p_.a.row + block.first_step * p_.a.column;
    kernel_.pack({a, p_.a.row, p_.a.column, rows, block.steps, packed_a_, tile_rows_, false});
    T* waiting = waiting_;
    for (int64_t j = 0; j < columns; j += tile_columns_) {
      const int64_t width = std::min(tile_columns_, columns - j);
      int64_t b_step = tile_columns_;
      const T* b = panel(block, j0 + j, j, width, i0 == 0, b_step);
      for (int64_t i = 0; i < rows; i += tile_rows_) {
        run_tile(block, i0 + i, std::min(tile_rows_, rows - i), j0 + j, width, packed_a_ + i * block.steps, b, b_step,
                 waiting);
        waiting += order_.blocks.size() == 1 ? 0 : waiting_size();
      }
    }
  }

  // Columns [column, column + width) of b for the steps of the block: where they lie, or packed, now if `is_first` use.
  const T* panel(const Block& block, int64_t column, int64_t slot, int64_t width, bool is_first, int64_t& b_step) {
    const T* from = p_.b.data + block.first_step * p_.b.row + column * p_.b.column;
    if (!is_b_packed_ && width == tile_columns_) {
      b_step = p_.b.row;
      return from;
    }
    T* packed = is_b_kept_ ? packed_b_ + slot * p_.k + block.first_step * tile_columns_ : packed_b_;
    if (is_first || !is_b_kept_) {
      kernel_.pack({from, p_.b.column, p_.b.row, width, block.steps, packed, tile_columns_, true});
    }
    return packed;
  }

  void run_tile(const Block& block, int64_t i, int64_t rows, int64_t j, int64_t width, const T* a, const T* b,
                int64_t b_step, T* waiting) {
    const auto tile = kernel_.tile[rows][std::countr_zero(static_cast<uint64_t>(tile_columns_ / kernel_.lanes))];
    const bool is_last = &block == &order_.blocks.back();
    T* out = p_.out.data + i * p_.out.row + j * p_.out.column;
    detail::TileTask<T> task{order_.pieces.data() + block.first_piece,
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
        T& to = out[r * p_.out.row + c * p_.out.column];
        to = p_.accumulate ? to + edge_[r * tile_columns_ + c] : edge_[r * tile_columns_ + c];
      }
    }
  }

  const ProductKernel<T>& kernel_;
  const Product<T>& p_;
  const ProductOrder& order_;
  int64_t tile_rows_ = 0, tile_columns_ = 0;  // of a tile
  int64_t rows_ = 0, columns_ = 0;            // of what is packed at a time, whole tiles
  bool is_b_packed_ = false;
  bool is_b_kept_ = false;  // packed panels of b serve more rows than one pass has
  T *packed_a_ = nullptr, *packed_b_ = nullptr, *waiting_ = nullptr, *edge_ = nullptr;
};

template <typename T>
void verify(const Product<T>& p) {
  TESSERA_CHECK(p.batch >= 0 && p.m >= 0 && p.n >= 0 && p.k >= 0, "[product] ", p.batch, " times ", p.m, " x ", p.k,
                " times ", p.k, " x ", p.n, ": a size is negative");
  TESSERA_CHECK(p.leaf >= 0 && p.leaves >= 0, "[product] ", p.leaves, " leaves of ", p.leaf,
                ": must be 0 (the default) or more");
  TESSERA_CHECK(p.leaves == 0 || (p.leaf == 0 ? p.k == 0 || p.leaves == 1 : ceil_div(p.k, p.leaf) <= p.leaves),
                "[product] ", p.leaves, " leaves of ", p.leaf, " do not hold k = ", p.k);
}

// The same product with rows and columns in each other's place: fma(a, b, c) and fma(b, a, c) are one number.
template <typename T>
Product<T> transposed(const Product<T>& p) {
  Product<T> result = p;
  std::swap(result.m, result.n);
  result.a = {p.b.data, p.b.column, p.b.row, p.b.batch};
  result.b = {p.a.data, p.a.column, p.a.row, p.a.batch};
  std::swap(result.out.row, result.out.column);
  return result;
}

// Cycles, roughly: registers of sums times k at two a cycle, and elements of `out` that cannot be written by registers.
template <typename T>
int64_t cost_of(const Product<T>& p, int64_t lanes) {
  return p.m * ceil_div(p.n, lanes) * p.k + (p.out.column == 1 ? 0 : 3 * p.m * p.n);
}

template <typename T>
Product<T> part_of(const Product<T>& p, int64_t matrix, int64_t i, int64_t rows, int64_t j, int64_t columns) {
  Product<T> result = p;
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

template <typename T>
Grid make_grid(const ProductKernel<T>& kernel, const Product<T>& p, int64_t parts) {
  Grid grid;
  const int64_t most_down = ceil_div(p.m, kernel.rows), most_across = ceil_div(p.n, 2 * kernel.lanes);
  while (grid.down * grid.across < parts && (grid.down < most_down || grid.across < most_across)) {
    const bool is_tall = p.m * grid.across > p.n * grid.down;
    ++(grid.across >= most_across || (is_tall && grid.down < most_down) ? grid.down : grid.across);
  }
  return grid;
}

template <typename T>
void run(const Product<T>& given) {
  verify(given);
  if (given.batch == 0 || given.m == 0 || given.n == 0) {
    return;
  }
  const ProductKernel<T>& kernel = current_kernel<T>();
  const Product<T> other = transposed(given);
  const Product<T>& p = cost_of(other, kernel.lanes) < cost_of(given, kernel.lanes) ? other : given;
  const int64_t leaf = p.leaf == 0 ? std::max<int64_t>(p.k, 1) : p.leaf;
  const ProductOrder order =
      detail::make_order(p.k, leaf, p.leaves, p.m <= 2 * kernel.rows ? kChainSteps : kBlockSteps);
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
      SerialProduct<T>(kernel, piece, order).run();
    }
  });
}

}  // namespace

void run_product(const Product<float>& product) { run(product); }

void run_product(const Product<double>& product) { run(product); }

}  // namespace tessera::kernels
