#include "tessera/kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/base/parallel.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/product/product.h"
#include "tessera/kernels/product/product_order.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = 128 * 1024;  // scores held at a time in the forward direction: they stay in the second cache
constexpr int64_t kMostRows = 128;

template <typename T>
std::unique_ptr<T[]> make_array(int64_t count) {
  return std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count));
}

// Query rows [begin, begin + rows) of one head against keys [0, keys).
//
// Under a causal mask `keys` may end with the last that any of the rows sees: what lies beyond would add zeros to the
// sums. That gives the same bits unless something is not finite or a sum is -0, to which adding zeros matters.
struct QueryBlock {
  int64_t sample, head, begin, rows, keys;
};

template <typename T>
class HeadRows {
 public:
  HeadRows(const Attention<T>& call, const QueryBlock& block) : call_(call), block_(block), table_(table<T>()) {}

  // The weights of all rows. False if the keys must not have been cut.
  bool make_weights(T* weights) const {
    const AttentionShape& s = call_.shape;
    const int64_t n = block_.keys;
    run_product(Product<T>{
        .m = block_.rows, .n = n, .k = s.width, .a = queries(), .b = {key(), 1, call_.k.row}, .out = {weights, n, 1}});
    bool is_ordinary = true;
    for (int64_t r = 0; r < block_.rows; ++r) {
      is_ordinary = std::isfinite(table_.attention_weights(row(r), weights + r * n)) && is_ordinary;
    }
    return is_ordinary;
  }

  // kept = weights * keep; the two may be one array.
  void apply_keep(const T* weights, T* kept) const {
    const int64_t n = block_.keys;
    for (int64_t r = 0; r < block_.rows; ++r) {
      const T* keep = row(r).keep;
      for (int64_t j = 0; j < n; ++j) {
        kept[r * n + j] = weights[r * n + j] * keep[j];
      }
    }
  }

  // The gradient of the scores. False if the keys must not have been cut.
  bool make_slopes(Heads<const T> grad, const T* weights, T* slopes) const {
    const AttentionShape& s = call_.shape;
    const int64_t n = block_.keys;
    run_product(Product<T>{.m = block_.rows,
                           .n = n,
                           .k = s.value_width,
                           .a = {grad.at(block_.sample, block_.head, block_.begin), grad.row, 1},
                           .b = {value(), 1, call_.v.row},
                           .out = {slopes, n, 1}});
    bool is_ordinary = true;
    for (int64_t r = 0; r < block_.rows; ++r) {
      const T sum = table_.attention_slopes(row(r), weights + r * n, slopes + r * n);
      is_ordinary = std::isfinite(sum) && !(sum == T(0) && std::signbit(sum)) && is_ordinary;
    }
    return is_ordinary;
  }

  // out = factors times the keys' rows of `other`, which are `width` wide. False if the keys must not have been cut.
  bool sum_over_keys(const T* factors, const T* other, int64_t other_row, int64_t width, T* out,
                     int64_t out_row) const {
    run_product(Product<T>{.m = block_.rows,
                           .n = width,
                           .k = block_.keys,
                           .a = {factors, block_.keys, 1},
                           .b = {other, other_row, 1},
                           .out = {out, out_row, 1},
                           .leaf = call_.key_leaf});
    if (block_.keys == call_.shape.keys) {
      return true;
    }
    for (int64_t r = 0; r < block_.rows; ++r) {
      if (table_.has_minus_zero(width, out + r * out_row)) {
        return false;
      }
    }
    return true;
  }

  Matrices<const T> queries() const { return {call_.q.at(block_.sample, block_.head, block_.begin), call_.q.row, 1}; }
  const T* key() const { return call_.k.at(block_.sample, key_head()); }
  const T* value() const { return call_.v.at(block_.sample, key_head()); }

 private:
  int64_t key_head() const { return block_.head / (call_.shape.heads / call_.shape.key_heads); }

  AttentionRow<T> row(int64_t r) const {
    const int64_t i = block_.begin + r, n = block_.keys;
    const auto at = [&](const auto& heads) {
      return heads.data == nullptr ? nullptr : heads.at(block_.sample, block_.head, i);
    };
    return {n,
            call_.is_causal ? std::min(n, i + 1) : n,
            static_cast<T>(call_.scale),
            at(call_.allowed),
            at(call_.added),
            at(call_.keep)};
  }

  const Attention<T>& call_;
  const QueryBlock& block_;
  const Table<T>& table_;
};

template <typename T>
bool is_finite(Heads<const T> x, int64_t sample, int64_t head, int64_t rows, int64_t width) {
  bool result = true;
  for (int64_t p = 0; p < rows && result; ++p) {
    result = table<T>().is_finite(width, x.at(sample, head, p));
  }
  return result;
}

// The end of the keys that rows up to `end` see, or of all.
int64_t cut_keys(const AttentionShape& s, bool is_cut, int64_t end) { return is_cut ? std::min(s.keys, end) : s.keys; }

template <typename T>
void verify_attention(const Attention<T>& call) {
  const AttentionShape& s = call.shape;
  TESSERA_CHECK(s.batch >= 0 && s.queries >= 0 && s.keys >= 0 && s.width >= 0 && s.value_width >= 0 && s.heads >= 0 &&
                    call.key_leaf >= 0,
                "[attention] batch ", s.batch, ", ", s.heads, " heads, ", s.queries, " queries, ", s.keys,
                " keys, widths ", s.width, " and ", s.value_width, ", leaves of ", call.key_leaf, ": one is negative");
  TESSERA_CHECK(s.heads == 0 || (s.key_heads > 0 && s.heads % s.key_heads == 0), "[attention] ", s.heads,
                " query heads in groups of ", s.key_heads, " key heads; accepted: a multiple");
  const int masks =
      (call.is_causal ? 1 : 0) + (call.allowed.data != nullptr ? 1 : 0) + (call.added.data != nullptr ? 1 : 0);
  TESSERA_CHECK(masks <= 1, "[attention] takes one of is_causal, allowed and added, not ", masks);
}

template <typename T>
bool run_block(const Attention<T>& call, const QueryBlock& block, T* weights, Heads<T> out) {
  const HeadRows<T> rows(call, block);
  bool is_right = rows.make_weights(weights);
  if (call.keep.data != nullptr) {
    rows.apply_keep(weights, weights);
  }
  is_right = rows.sum_over_keys(weights, rows.value(), call.v.row, call.shape.value_width,
                                out.at(block.sample, block.head, block.begin), out.row) &&
             is_right;
  return is_right || block.keys == call.shape.keys;
}

// Sums of pieces as they come: what waits for its right half lies below.
template <typename T>
class Tree {
 public:
  explicit Tree(int64_t size) : size_(size) {}

  // Where the next piece goes. Valid until the next call.
  T* push() {
    if (used_ == waiting_.size()) {
      waiting_.push_back(make_array<T>(size_));
    }
    return waiting_[used_++].get();
  }

  // The piece that was pushed last closes so many sums.
  void close(int64_t closes) {
    for (; closes > 0; --closes, --used_) {
      T* left = waiting_[used_ - 2].get();
      const T* right = waiting_[used_ - 1].get();
      for (int64_t i = 0; i < size_; ++i) {
        left[i] = left[i] + right[i];
      }
    }
  }

  const T* root() const { return waiting_[0].get(); }

 private:
  int64_t size_;
  size_t used_ = 0;
  std::vector<std::unique_ptr<T[]>> waiting_;
};

// dq of one query head, and its part of dk and dv.
template <typename T>
class HeadBackward {
 public:
  HeadBackward(const Attention<T>& call, Heads<const T> grad, const AttentionGradients<T>& out)
      : call_(call),
        grad_(grad),
        out_(out),
        s_(call.shape),
        order_(detail::make_order(s_.queries, leaf(), 0, kChainSteps)) {
    const int64_t most = std::min(kChainSteps, s_.queries) * s_.keys;
    weights_ = make_array<T>(most);
    slopes_ = make_array<T>(most);
    if (call.keep.data != nullptr) {
      kept_ = make_array<T>(most);
    }
  }

  void run(int64_t sample, int64_t head, bool is_cut, Tree<T>& dk, Tree<T>& dv) {
    int64_t begin = 0;
    for (const detail::Piece& piece : order_.pieces) {
      QueryBlock block{sample, head, begin, piece.steps, cut_keys(s_, is_cut, begin + piece.steps)};
      if (!run_rows(block)) {
        block.keys = s_.keys;
        run_rows(block);
      }
      const T* kept = call_.keep.data != nullptr ? kept_.get() : weights_.get();
      sum_over_queries(block, kept, {grad_.at(sample, head, begin), grad_.row, 1}, s_.value_width, dv.push());
      sum_over_queries(block, slopes_.get(), HeadRows<T>(call_, block).queries(), s_.width, dk.push());
      dv.close(piece.closes);
      dk.close(piece.closes);
      begin += piece.steps;
    }
  }

 private:
  int64_t leaf() const { return out_.query_leaf == 0 ? std::max<int64_t>(call_.shape.queries, 1) : out_.query_leaf; }

  bool run_rows(const QueryBlock& block) {
    const HeadRows<T> rows(call_, block);
    bool is_right = rows.make_weights(weights_.get());
    if (call_.keep.data != nullptr) {
      rows.apply_keep(weights_.get(), kept_.get());
    }
    is_right = rows.make_slopes(grad_, weights_.get(), slopes_.get()) && is_right;
    T* dq = out_.q.at(block.sample, block.head, block.begin);
    is_right = rows.sum_over_keys(slopes_.get(), rows.key(), call_.k.row, s_.width, dq, out_.q.row) && is_right;
    return is_right || block.keys == s_.keys;
  }

  // One piece: out = factors^T times rows of `other`; +0 for the keys that were cut.
  void sum_over_queries(const QueryBlock& block, const T* factors, Matrices<const T> other, int64_t width,
                        T* out) const {
    run_product(Product<T>{.m = block.keys,
                           .n = width,
                           .k = block.rows,
                           .a = {factors, 1, block.keys},
                           .b = other,
                           .out = {out, width, 1}});
    std::fill(out + block.keys * width, out + s_.keys * width, T(0));
  }

  const Attention<T>& call_;
  const Heads<const T> grad_;
  const AttentionGradients<T>& out_;
  const AttentionShape& s_;
  const detail::ProductOrder order_;
  std::unique_ptr<T[]> weights_, slopes_, kept_;
};

// Position by position, the sum of the query heads' parts.
template <typename T>
void add_group(const std::vector<Tree<T>>& parts, int64_t leaf, int64_t positions, int64_t width, T* out,
               int64_t out_row) {
  const auto times = static_cast<int64_t>(parts.size());
  std::vector<T> terms(static_cast<size_t>(width * times));
  for (int64_t p = 0; p < positions; ++p, out += out_row) {
    for (int64_t t = 0; t < times; ++t) {
      for (int64_t e = 0; e < width; ++e) {
        terms[static_cast<size_t>(e * times + t)] = parts[static_cast<size_t>(t)].root()[p * width + e];
      }
    }
    if (times == 1) {
      std::copy(terms.begin(), terms.end(), out);
    } else {
      table<T>().row_sum({width, times}, leaf, {terms.data(), times}, out);
    }
  }
}

}  // namespace

template <typename T>
void attention(const Attention<T>& call, Heads<T> out) {
  verify_attention(call);
  const AttentionShape& s = call.shape;
  const int64_t rows = std::clamp<int64_t>(kBlock / std::max<int64_t>(s.keys, 1) / 16 * 16, 16, kMostRows);
  const int64_t blocks = (s.queries + rows - 1) / rows;
  parallel_for(s.batch * s.heads * blocks, 1, [&](int64_t begin, int64_t end) {
    const auto weights = make_array<T>(rows * s.keys);
    int64_t checked = -1;
    bool is_cut = false;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks, first = i % blocks * rows;
      QueryBlock block{head / s.heads, head % s.heads, first, std::min(rows, s.queries - first), 0};
      if (std::exchange(checked, head) != head) {
        is_cut = call.is_causal &&
                 is_finite(call.v, block.sample, block.head / (s.heads / s.key_heads), s.keys, s.value_width);
      }
      block.keys = cut_keys(s, is_cut, first + block.rows);
      if (run_block(call, block, weights.get(), out)) {
        continue;
      }
      block.keys = s.keys;
      run_block(call, block, weights.get(), out);
    }
  });
}

template <typename T>
void attention_backward(const Attention<T>& call, Heads<const T> grad, const AttentionGradients<T>& out) {
  verify_attention(call);
  TESSERA_CHECK(out.query_leaf >= 0 && out.group_leaf >= 0, "[attention_backward] leaves of ", out.query_leaf,
                " queries and ", out.group_leaf, " heads: must be 0 (one leaf) or more");
  const AttentionShape& s = call.shape;
  if (s.heads == 0) {
    return;
  }
  const int64_t times = s.heads / s.key_heads, group_leaf = out.group_leaf == 0 ? kWholeRow : out.group_leaf;
  parallel_for(s.batch * s.key_heads, 1, [&](int64_t begin, int64_t end) {
    HeadBackward<T> backward(call, grad, out);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / s.key_heads, key_head = i % s.key_heads;
      const bool is_finite_key = call.is_causal && is_finite(call.k, sample, key_head, s.keys, s.width) &&
                                 is_finite(call.v, sample, key_head, s.keys, s.value_width);
      std::vector<Tree<T>> dk, dv;
      for (int64_t head = key_head * times; head < (key_head + 1) * times; ++head) {
        const bool is_cut = is_finite_key && is_finite(call.q, sample, head, s.queries, s.width) &&
                            is_finite(grad, sample, head, s.queries, s.value_width);
        dk.emplace_back(s.keys * s.width);
        dv.emplace_back(s.keys * s.value_width);
        backward.run(sample, head, is_cut, dk.back(), dv.back());
      }
      add_group(dk, group_leaf, s.keys, s.width, out.k.at(sample, key_head), out.k.row);
      add_group(dv, group_leaf, s.keys, s.value_width, out.v.at(sample, key_head), out.v.row);
    }
  });
}

#define TESSERA_INSTANTIATE(T)                            \
  template void attention(const Attention<T>&, Heads<T>); \
  template void attention_backward(const Attention<T>&, Heads<const T>, const AttentionGradients<T>&);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
