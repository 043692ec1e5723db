// Gradients that a program's own loop merges once a step: together, when the first of them is read.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Before an operator outside of the model's passes reads the sum over ranks `read`: if it is the gradient of a placed
// parameter, all such gradients that are still sums are merged, each into the layout of its parameter, small ones by
// few collectives (move/join_limits.h). Says whether it was. Collective over the axes of these sums.
bool merge_step_gradients(RankState& state, const Meta& read);

// ... and in `exact`, reads what waits: the other gradients that do.
std::vector<at::Tensor> waiting_gradients(const RankState& state, const Meta& read);

}  // namespace tessera::dtensor
