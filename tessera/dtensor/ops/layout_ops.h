// The operators that move a DTensor's value: tessera::redistribute, tessera::to_plain and tessera::from_plain. libtorch
// sees operators like any other, so that forward mode, gradients of gradients and the transforms of torch.func go
// through them.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/layout/spec.h"

namespace tessera::dtensor {

// What the transforms of torch.func wrapped; other tensors as they are. Inside vmap it has one dim more.
const at::Tensor& unwrapped(const at::Tensor& tensor);

// The tensor on the mesh and the placements of `to`. Collective over the mesh.
at::Tensor call_redistribute(const at::Tensor& tensor, const layout::Spec& to);

// This rank's part, sharing memory, or the whole value. The latter is collective over the mesh.
at::Tensor call_to_plain(const at::Tensor& tensor, bool whole);

// The same part without being a step of the program, so that ranks may ask differently often. Throws where the part is
// not the value: of a tensor that waits for other samples, of a view that is made again when its base changes. No
// communication.
at::Tensor part_outside_program(const at::Tensor& tensor);

// The plain tensor, this rank's part of `layout` (all of it, where nothing is cut), as a DTensor; its gradient is plain
// again.
at::Tensor call_from_plain(const at::Tensor& part, const layout::Spec& layout);

}  // namespace tessera::dtensor
