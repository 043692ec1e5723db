// Which rank steps which matrix. Plain values: no communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::optim {

// What a step of a matrix-wise optimizer costs: the floating-point operations of one Newton-Schulz iteration on
// [rows, columns], where a row is an index of the first dim, and as many as elements for other tensors.
double step_cost(c10::IntArrayRef sizes);

// Which axes have one owner: those that cut the parameter, so that replicas step it each for themselves and send
// nothing to each other; or all axes, so that it is stepped, and its state kept, once in all, and its value sent to
// the replicas.
enum class OwnedOver : uint8_t { kCuts, kMesh };

// Where the whole of each parameter is stepped: On one coordinate of every axis that has an owner, Replicate on the
// others. An owner holds some of the parameter: a stage's are at the stage, and one that lies whole at one place stays
// there and sends nothing. Those come first, then the most expensive, each to the coordinates whose ranks have the
// least to do so far (longest processing time); of equally expensive ones the larger and then the earlier, of equally
// loaded ranks the first. Every rank finds the same without asking. A parameter that no axis cuts has no owner by
// kCuts: every rank steps it. All parameters are on one mesh.
std::vector<layout::Placements> plan_owners(const std::vector<layout::Spec>& parameters, OwnedOver over);

}  // namespace tessera::optim
