// Sums, maxima and softmax of rows.
//
// A row is treated alike whatever other rows are in the call. A sum over a row: leaves of `leaf` elements (kWholeRow:
// one); in a leaf 16 lanes, lane j the chain over elements j, 16 + j, ... from +0, then the tree over the lanes; then
// the tree over the leaves. A shard that holds whole leaves of a row gets the partial sum of its tree node by the same
// call. The tree over n things splits at the largest power of two below n. An empty row sums to +0.
//
// T is float or double. An output may be an input of the same call; two outputs may not overlap.
#pragma once

#include <cstdint>
#include <limits>

#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

constexpr int64_t kWholeRow = std::numeric_limits<int64_t>::max();

// out[r] = the sum of row r.
template <typename T>
void row_sum(Shape shape, int64_t leaf, Rows<const T> x, T* out);

// out[r] = the sum of row r, divided by shape.n.
template <typename T>
void row_mean(Shape shape, int64_t leaf, Rows<const T> x, T* out);

// out[r] = the sum of the squares of row r, each added by fma.
template <typename T>
void row_squares(Shape shape, int64_t leaf, Rows<const T> x, T* out);

// The root of the tree over `count` values: how the partial sums of neighbouring tree nodes of one size, or of rows,
// merge.
template <typename T>
T tree_sum(int64_t count, const T* values);

// out[r] = the largest element of row r that is not NaN; minus infinity if there is none. Never -0, so that maxima of
// parts of a row merge exactly in any order.
template <typename T>
void row_max(Shape shape, Rows<const T> x, T* out);

// out[r] = the sum of exp(x - max[r]) over row r.
template <typename T>
void row_exp_sum(Shape shape, int64_t leaf, Rows<const T> x, const T* max, T* out);

// y = exp(x - max) / sum, over whole rows. Rows that hold NaN or plus infinity, or minus infinity only, become NaN.
template <typename T>
void softmax(Shape shape, Rows<const T> x, Rows<T> y);

// y = (x - max) - log(sum).
template <typename T>
void log_softmax(Shape shape, Rows<const T> x, Rows<T> y);

// dx = y * (grad - sum of grad * y), each product added by fma.
template <typename T>
void softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx);

// dx = grad - exp(y) * (sum of grad), by fma.
template <typename T>
void log_softmax_backward(Shape shape, Rows<const T> grad, Rows<const T> y, Rows<T> dx);

}  // namespace tessera::kernels
