// Memory of CPU tensors that a thread frees and takes again.
#pragma once

#include <cstddef>

namespace tessera::base {

inline constexpr size_t kLargestKeptBlock = 1 << 20;    // in bytes
inline constexpr size_t kKeptBytesOfThread = 32 << 20;  // at most; a block more, and the thread lets go of all

// From now on the memory of CPU tensors, up to kLargestKeptBlock each, stays with the thread that freed it, by size,
// for the next tensors there: the last that was freed is the first that is taken, as it is still in the processor's
// caches. Nothing where somebody has given libtorch another allocator.
void keep_freed_blocks();

// Lets go of what the calling thread keeps.
void free_kept_blocks();

// What it keeps, in bytes.
size_t kept_bytes();

}  // namespace tessera::base
