// The norm by which gradients are clipped, defined by rows so that every way to store a parameter gives the same bits.
//
// A row's sum of squares is the tree over its kClipLeaves column leaves (rows.h: row_squares); a parameter's the tree
// over its rows; the model's the tree over its parameters in order; the norm its square root. A row is one index of the
// first dim, its columns are all others in order; a parameter of one dim is one row. A rank that holds whole rows, or
// whole column leaves, computes nodes of these trees. Nodes of one size merge by tree_sum. T is float or double.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

constexpr int64_t kClipLeaves = 8;

// Columns in a leaf of rows of `columns` elements: ceil(columns / kClipLeaves), at least 1.
int64_t clip_leaf(int64_t columns);

// out[r] = the squares of row r, or of the part of it that shape.n elements from a leaf's begin on make up; `columns`
// is the number of columns of the whole row.
template <typename T>
void clip_row_squares(Shape shape, int64_t columns, Rows<const T> x, T* out);

// The squares of a whole parameter.
template <typename T>
T clip_squares(Shape shape, Rows<const T> x);

// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; NaN for a norm of NaN.
template <typename T>
T clip_factor(T norm, double max_norm);

}  // namespace tessera::kernels
