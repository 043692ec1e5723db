// From the ranks that read blocks of a checkpoint to those that hold the tensors in them.
#pragma once

#include <vector>

#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/checkpoint/ranks/own_blocks.h"
#include "tessera/checkpoint/ranks/parts.h"

namespace tessera::checkpoint {

// Writes to this rank's `parts` of the wanted tensors what they are to hold of all blocks. `own` are those whose reader
// it is, in the order of the plan. Ranks that may read each other's memory copy out of it; otherwise readers send the
// others what they need, some blocks at a time. Collective over the job.
void hand_out(const catalogue::Catalogue& wanted, const std::vector<Block>& blocks, const OwnBlocks& own, Parts& parts);

}  // namespace tessera::checkpoint
