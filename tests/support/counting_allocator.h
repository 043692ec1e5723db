// Bytes of CPU tensors, charged to the rank whose thread allocated them.
#pragma once

#include <cstdint>

namespace tessera::support {

// What the threads of one rank hold. A block is charged to the rank that allocated it until it is freed, whoever frees
// it.
struct Bytes {
  int64_t live = 0;
  int64_t peak = 0;     // of `live` since the last reset_peak
  int64_t largest = 0;  // single block since then
};

// Puts a counting layer over libtorch's CPU allocator, for the rest of the process. Scratch memory that kernels take
// elsewhere is not seen.
void count_allocations();

// What `rank` holds; -1: threads that belong to no rank. Ranks up to 63 are counted one by one. Thread-safe.
Bytes bytes_of(int64_t rank);

// Peak and largest begin anew.
void reset_peak(int64_t rank);

}  // namespace tessera::support
