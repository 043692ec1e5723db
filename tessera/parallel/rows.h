// Which samples of a step each rank works on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dtensor/meta.h"
#include "tessera/layout/mesh.h"
#include "tessera/layout/placement.h"

namespace tessera::parallel {

// The micro-batches are cut from the step's samples, each is cut over the batch axes, and a rank's parts of all of them follow
// each other in one block; the blocks, in the order of the batch axes (slowest first), make up the step.
//
// What one rank needs is a closed form, whatever the size of the mesh. One thread uses an object.
class Rows {
 public:
  Rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples, int64_t micro_batches);

  // Of a tensor with a micro-batch's samples along dim 0.
  const layout::Placements& placements() const { return placements_; }

  int64_t samples() const { return samples_; }
  int64_t micro_batches() const { return micro_batches_; }
  // Samples in micro-batch `index`.
  int64_t size_of(int64_t index) const;

  // The samples of micro-batch `index` for the rank at `coord`.
  layout::Range samples_of(const layout::Coord& coord, int64_t index) const;

  // The samples of all rows of micro-batch `index`. Listed at the first call, which visits every block; kept.
  const dtensor::Origin* origin(int64_t index);

 private:
  layout::Range rows_of(const layout::Coord& coord, int64_t index) const;

  layout::Mesh mesh_;
  std::vector<int64_t> axes_;  // of the batch, slowest first
  layout::Placements placements_;
  int64_t samples_, micro_batches_;
  std::vector<const dtensor::Origin*> origins_;
};

}  // namespace tessera::parallel
