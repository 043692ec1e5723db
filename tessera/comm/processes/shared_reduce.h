// Reductions between processes that share memory.
#pragma once

#include "tessera/comm/processes/shared_board.h"
#include "tessera/comm/sums/reduction.h"

namespace tessera::comm {

// Whether a board holds a piece of what each member gives to each; the same on all members.
bool fits_board(const Reduction& reduction);

// Runs `reduction` as `round`, which fits: every member leaves pieces of what it gives on its board, combines those
// left for it, and leaves the results for the others while it brings the next. `member` is the calling one. Collective.
void run_reduction(SharedBoard& board, const Round& round, const Reduction& reduction, int64_t member);

}  // namespace tessera::comm
