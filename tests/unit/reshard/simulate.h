// A redistribution run on plain vectors: every rank's local buffer in one process.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tessera/reshard/path.h"

namespace tessera::reshard {

// Local values of every rank, row-major over its box.
using Buffers = std::map<int64_t, std::vector<double>>;

// The value of each element of the tensor, row-major.
std::vector<double> element_values(c10::IntArrayRef sizes);

// What the ranks hold of the tensor with those values; addends of a Partial differ from rank to rank.
Buffers spread(const Spec& spec, const std::vector<double>& values);

// Runs every step, checking what the step promises (that a line's boxes tile, that sends match receives).
Buffers run_path(const Path& path, Buffers buffers);

// Whether the ranks hold the tensor with those values at `spec`, Partial axes combined.
void expect_holds(const Spec& spec, const std::vector<double>& values, const Buffers& buffers);

}  // namespace tessera::reshard
