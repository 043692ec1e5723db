// Reductions in the order that Communicator promises, by operators of whatever device the tensors are on.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/layout/placement.h"

namespace tessera::comm {

// output = the combination of `values`, the first first: half precision in float and rounded once, bool as Communicator
// says, NaN wins. All of one dtype and device; the output may be one of the values.
void combine_in_order(const at::Tensor& output, const std::vector<at::Tensor>& values, layout::ReduceOp op);

// Divides in place by `count`, on the device: a number from the CPU would be multiplied by its inverse.
void divide(const at::Tensor& tensor, int64_t count);

}  // namespace tessera::comm
