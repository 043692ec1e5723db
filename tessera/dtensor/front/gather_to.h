// The whole of a DTensor on one rank.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// The whole value as a plain tensor on `rank` alone, for files and the like: undefined on the others, which hold no
// more than their parts. Memory of its own, without history. Collective over the mesh, of which `rank` is one; a plain
// tensor is copied.
at::Tensor gather_to(int64_t rank, const at::Tensor& tensor);

}  // namespace tessera::dtensor
