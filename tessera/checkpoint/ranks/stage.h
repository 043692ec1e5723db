// What a rank is to write, gathered and copied while the program waits.
#pragma once

#include <vector>

#include "tessera/checkpoint/format/part.h"
#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/checkpoint/ranks/host_memory.h"

namespace tessera::checkpoint {

struct StageOptions {
  bool in_slices = false;  // parameters and buffers too
  bool copies = true;      // nothing that the program does later changes what is staged
};

// Parameters and buffers of which a rank is the owner (catalogue::owners_of): plain, on the CPU, without their hashes.
struct WholeTensors {
  std::vector<Piece> pieces;
  int64_t parts = 0;  // ranks that have any
  int64_t part = -1;  // which of them this one is
};

// Those of the contents, or none where they go in slices. `catalogue` is the contents'. Beside what it returns, in
// `memory` but for what is not copied, a rank holds one tensor at most. Collective over the job; sends what owners lack
// and nothing else.
WholeTensors stage_whole(const Contents& contents, const catalogue::Catalogue& catalogue, const StageOptions& options,
                         HostMemory& memory);

// The slices that this rank writes of all else: each slice is one rank's. As stage_whole; nothing is sent.
std::vector<Piece> stage_slices(const Contents& contents, const catalogue::Catalogue& catalogue,
                                const StageOptions& options, HostMemory& memory);

}  // namespace tessera::checkpoint
