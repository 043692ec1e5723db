// What a rank holds of a DTensor, as slices of the whole.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/layout/spec.h"

namespace tessera::dtensor {

// A slice of the whole tensor: where it begins in each dim, and its values, a plain view of the rank's part.
struct Chunk {
  std::vector<int64_t> offsets;
  at::Tensor part;
};

// The calling rank's chunks, none empty, in the order of their offsets: one, or several of a cut that is interleaved or
// spans dims; none where the rank holds nothing. Of a tensor without elements: one chunk of all of it. Ranks that hold
// copies have equal chunks, others share no element. Writes to a part change the tensor. Throws for a plain tensor, for
// a Partial, whose ranks hold terms of the values, and as part_outside_program does. No communication; no step of the
// program, so that ranks may ask differently often.
std::vector<Chunk> chunks_of(const at::Tensor& tensor);

// The same of a part that the calling rank holds of a tensor that lies so.
std::vector<Chunk> chunks_of_part(const at::Tensor& local, const layout::Spec& spec, const layout::Coord& coord);

}  // namespace tessera::dtensor
