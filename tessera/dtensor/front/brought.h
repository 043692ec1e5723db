// Values that are brought to the stage of a body that reads them, before it runs.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"
#include "tessera/layout/placement.h"

namespace tessera::dtensor {

// Where a value of this layout is read by a body with these parameters, where they are on one stage and it, which wants
// a gradient, is on another. Nothing: it stays where it is.
std::optional<Spec> place_for(const at::Tensor& value, const std::vector<at::Tensor>& parameters);

// The value there, sent as `reader` would have it sent: another tensor for the same place in autograd's graph, so that
// its gradients meet those of the value in their order. It may not be written to. No parameter, or view of one.
// Collective over both stages.
at::Tensor at_stage(RankState& state, const char* reader, const at::Tensor& value, const Spec& there);

}  // namespace tessera::dtensor
