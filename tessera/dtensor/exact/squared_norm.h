// Norms of tensors by the definition of the clip norm (kernels/rows/clip_norm.h), the same bits on every layout.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// Sum of the squares of a tensor, a scalar of its dtype, of 16 bits in float32: of each row (an index of the first dim;
// all of a tensor of one dim) the tree over its column leaves, then the tree over the rows. The same bits on every
// layout: rows may be cut anywhere, a row between its leaves; where it is cut otherwise, the rows are gathered first.
// The scalar is replicated. A plain tensor gives a plain scalar. Throws for a Partial and other dtypes. Collective over
// the axes that cut the tensor: one small all-gather each.
at::Tensor squared_norm(const at::Tensor& tensor);

// The square root of the tree over the squared norms of `tensors` in their order: one at least, DTensors on one mesh. A
// replicated scalar, float64 if one of them is. Collective likewise, with one all-gather an axis for all of them.
at::Tensor joint_norm(c10::ArrayRef<at::Tensor> tensors);

}  // namespace tessera::dtensor
