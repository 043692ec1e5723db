// What the axes of a mesh are for, by their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/layout/mesh.h"

namespace tessera::layout {

// What the ranks along an axis do. A mesh alone gives its axes no role, so that a program which places tensors by hand
// names them as it likes; a plan, and what makes or reads one, asks for the role of each.
enum class AxisRole : uint8_t {
  kData,      // dp, dp_replicate: they cut the batch
  kSharded,   // fsdp, dp_shard: they cut the batch, and what is kept of each parameter
  kTensor,    // tp: they cut the model
  kPipeline,  // pp: they cut the model into stages, one after the other
};

// The role of an axis. Throws PlanError, with the names that have one, for a name that is unknown or whose parallelism
// is not there yet.
AxisRole role_of(const Mesh& mesh, int64_t axis);

// Throws what role_of throws for the first axis that has no role.
void verify_roles(const Mesh& mesh);

// The names of the axes of this role, slowest first. Throws as verify_roles.
std::vector<std::string> axes_of(const Mesh& mesh, AxisRole role);

// How many coordinates those axes have together; 1 if there are none. Throws as verify_roles.
int64_t ranks_along(const Mesh& mesh, AxisRole role);

// The axes that cut the batch, in the order in which they do, slowest first: all that only replicate parameters, then
// those that shard them, so that the ranks which share a copy hold neighbouring samples. Throws as verify_roles.
std::vector<std::string> batch_axes_of(const Mesh& mesh);

// The mesh with its one axis that shards as two: dp_shard, and fsdp of `near` ranks that follow each other. If it has
// two and the last is of that size, as it is. Throws PlanError if `near` does not divide the axis into several parts.
Mesh with_near_ranks(const Mesh& mesh, int64_t near);

// What an axis of this role is called when nobody said otherwise.
std::string name_of(AxisRole role);

}  // namespace tessera::layout
