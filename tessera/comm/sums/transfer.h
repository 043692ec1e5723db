// What members of a thread group do to each other's tensors once all have arrived.
#pragma once

#include <vector>

#include "tessera/comm/call/call.h"

namespace tessera::comm {

// Does part `part` (one of calls.size()) of the collective that `calls` describe, by member. Parts touch disjoint
// outputs and may run at the same time, in any order, on any thread; together they are the collective. Of tensors on a
// device it is given to the current stream; there are no merges of those.
void transfer(const std::vector<const Call*>& calls, size_t part);

// Copies the bytes of a contiguous tensor to another of as many on its device, unless they are the same bytes.
void copy_bytes(const at::Tensor& to, const at::Tensor& from);

}  // namespace tessera::comm
