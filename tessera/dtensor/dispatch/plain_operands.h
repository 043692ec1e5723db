// Plain tensors that meet DTensors.
#pragma once

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Compares the plain tensors that the operator reads and throws if a rank of the mesh holds another value: they count
// as replicated, so every rank must have computed the same. Collective over the operands' mesh.
void check_plain_operands(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::dtensor
