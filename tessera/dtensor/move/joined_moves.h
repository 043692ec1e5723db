// Moves of many tensors that merge Partials, by few collectives.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/redistribute.h"

namespace tessera::dtensor {

// What run_move() gives for each of these parts. Reductions of one dtype and kind over one axis are done together:
// small parts lie end to end for one collective, as far as kSmallTogether says (join_limits.h). They combine element by
// element, in the order of the ranks, so each result has the bits that it has alone. All ranks name the same moves in
// the same order. Collective over the axes that the steps name.
std::vector<at::Tensor> run_moves(comm::RankContext& ctx, const std::vector<MovePtr>& moves,
                                  std::vector<at::Tensor> locals, const char* op);

}  // namespace tessera::dtensor
