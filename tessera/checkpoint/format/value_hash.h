// What slices of a tensor add to the hash of its value.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "tessera/reshard/holdings.h"

namespace tessera::checkpoint {

using reshard::Box;

// The share of the elements of `box` in the hash of a tensor of `sizes`: the shares of slices that make up the tensor
// add up, modulo 2^64, to what watch::hash_value gives of it on any layout (base::hash_element). `value` is plain,
// contiguous and on the CPU, with the sizes of the box.
uint64_t hash_slice(const at::Tensor& value, const Box& box, c10::IntArrayRef sizes);

}  // namespace tessera::checkpoint
