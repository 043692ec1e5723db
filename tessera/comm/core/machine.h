// The machine that a rank runs on: its memory, and how many ranks share it.
#pragma once

#include <cstdint>

#include "tessera/comm/core/context.h"

namespace tessera::comm {

// Bytes of memory that this process may use: the machine's, or less where a control group says so.
int64_t machine_bytes();

// How many ranks of the calling rank's job run on this machine, as threads or as processes: 1 where nobody said so, as
// of an imagined job.
int64_t ranks_on_machine();

// Says so; for whatever makes ranks.
void set_ranks_on_machine(RankContext& context, int64_t ranks);

}  // namespace tessera::comm
