// Moves of many tensors, by few collectives.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/join_limits.h"
#include "tessera/dtensor/move/redistribute.h"

namespace tessera::dtensor {

// What run_move() gives for each of these parts. Merges of one dtype and kind over the same axes are done together, and
// gathers of one dtype: parts lie end to end for one collective, as far as the limits say. Merges combine element by
// element, in the order of the ranks, so each result has the bits that it has alone. All ranks name the same moves in
// the same order. Collective over the axes that the steps name.
std::vector<at::Tensor> run_moves(comm::RankContext& ctx, const std::vector<MovePtr>& moves,
                                  std::vector<at::Tensor> locals, const JoinLimits& limits, const char* op);

}  // namespace tessera::dtensor
