// Copies of what a rank is to write, made while the program waits.
#pragma once

#include <vector>

#include "tessera/checkpoint/format/part.h"
#include "tessera/checkpoint/ranks/contents.h"

namespace tessera::checkpoint {

// Plain copies on the CPU, which nothing that the program does later changes; without their hashes.
struct Staged {
  std::vector<Piece> whole;   // parameters and buffers of which this rank is the owner
  std::vector<Piece> slices;  // of all else
  int64_t model_parts = 0;    // ranks that have any whole ones
  int64_t model_part = -1;    // which of them this one is
};

// What this rank writes of the contents, each tensor once over all ranks: parameters and buffers whole at their owners
// (catalogue::owners_of), or in slices if `in_slices`, as all else is. `catalogue` is theirs. Beside what it returns a
// rank holds one tensor at most. Collective over the job; sends what owners lack and nothing else.
Staged stage(const Contents& contents, const catalogue::Catalogue& catalogue, bool in_slices);

}  // namespace tessera::checkpoint
