// Which samples of a step each rank works on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/layout/labels.h"
#include "tessera/layout/mesh.h"
#include "tessera/layout/origin.h"
#include "tessera/layout/placement.h"
#include "tessera/sums/lattice.h"

namespace tessera::plan {

// How the samples of a step are dealt to ranks and micro-batches; always on multiples of `unit`. The last parts may be
// short or empty.
enum class Deal : uint8_t {
  kByBlock,  // one contiguous block a rank, which is cut into micro-batches, alike on all ranks and at any sample
  kByPass,   // one contiguous run a micro-batch, which is cut over the ranks
};

// The step's samples, cut over the batch axes (slowest first) and into micro-batches.
//
// What one rank needs is a closed form, whatever the size of the mesh. One thread uses an object.
class Rows {
 public:
  Rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples, int64_t micro_batches,
       int64_t unit = 1, Deal deal = Deal::kByBlock);

  Deal deal() const { return deal_; }
  int64_t samples() const { return samples_; }
  int64_t micro_batches() const { return micro_batches_; }
  // Samples in micro-batch `index`; the last ones may have none.
  int64_t size_of(int64_t index) const;
  // How many micro-batches have samples: the first ones.
  int64_t filled() const;
  // Whether every rank has samples in each micro-batch.
  bool fills_ranks() const;

  // Of a tensor with the samples of micro-batch `index` along dim 0.
  layout::Placements placements(int64_t index) const;

  // The samples of micro-batch `index` for the rank at `coord`.
  layout::Range samples_of(const layout::Coord& coord, int64_t index) const;

  // The samples of all rows of micro-batch `index`. Listed at the first call, which may visit every block; kept.
  const layout::Origin* origin(int64_t index);

 private:
  layout::Range samples_of_pass(int64_t index) const;
  layout::Range samples_of_block(int64_t block, int64_t index) const;
  int64_t most_of(int64_t index) const { return samples_of_block(0, index).size(); }  // no block has more

  layout::Mesh mesh_;
  std::vector<int64_t> axes_;  // of the batch, slowest first
  int64_t samples_, micro_batches_, unit_;
  Deal deal_;
  int64_t blocks_ = 1;
  int64_t block_size_ = 0;  // of all but the last ones
  std::vector<const layout::Origin*> origins_;
};

// A step that is dealt as wanted, or by block where that would leave a rank without samples in some micro-batch.
Rows deal_rows(const layout::Mesh& mesh, const std::vector<std::string>& batch_axes, int64_t samples,
               int64_t micro_batches, int64_t unit, Deal wanted);

// What the dims of a tensor of `samples` samples mean, of a step of `total`: dim 0 samples, and dim 1, if
// `has_positions`, positions.
layout::Labels batch_labels(const at::Tensor& tensor, int64_t samples, int64_t total, bool has_positions);

// Where a step of `samples` samples may be cut: in `exact`, which has a lattice, a rank holds whole leaves of the
// batch.
int64_t sample_unit(int64_t samples, const std::optional<sums::Lattice>& lattice);

}  // namespace tessera::plan
