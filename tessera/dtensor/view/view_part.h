// A part in another shape.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/tensor_like.h"

namespace tessera::dtensor {

// The memory of a contiguous part in another shape, as part.view(sizes) gives it, without the way through libtorch's
// dispatcher. Writes are counted with those of the part. `prototype` is of these sizes, and made where it is null.
at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes, Prototype& prototype);
// The same of a part of any strides, which its memory has in that shape.
at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace tessera::dtensor
