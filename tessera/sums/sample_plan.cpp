#include "tessera/sums/sample_plan.h"

#include <algorithm>

namespace tessera::sums {

TokenLeaves TokenLeaves::of(int64_t samples, int64_t positions, const Lattice& lattice) {
  const int64_t sample_leaf = leaf_unit(samples, lattice.batch), leaf = leaf_unit(positions, lattice.sequence),
                sequence_leaves = std::max<int64_t>((positions + leaf - 1) / leaf, 1);
  return {.samples = samples,
          .sample_leaf = sample_leaf,
          .sequence_leaves = sequence_leaves,
          .root = {0, (samples + sample_leaf - 1) / sample_leaf * sequence_leaves}};
}

layout::Range TokenLeaves::samples_of(int64_t leaf) const {
  return {leaf * sample_leaf, std::min((leaf + 1) * sample_leaf, samples)};
}

layout::Range SamplePlan::Counted::range_at(const layout::Coord& coord) const {
  return layout::local_range(spec->mesh, spec->placements, dim, spec->sizes[static_cast<size_t>(dim)], coord);
}

layout::Range SamplePlan::rows_at(const layout::Coord& coord) const {
  const layout::Range range = samples.range_at(coord);
  return {range.begin / positions, range.end / positions};
}

std::vector<SamplePlan::Piece> SamplePlan::pieces_at(const layout::Coord& coord) const {
  const bool is_cut = sequence.dim >= 0;
  const int64_t all = is_cut ? sequence.spec->sizes[static_cast<size_t>(sequence.dim)] : positions;
  return pieces_of(is_cut ? sequence.range_at(coord) : layout::Range{0, all}, all, leaves.sequence_leaves);
}

std::vector<SamplePlan::Piece> pieces_of(const layout::Range& held, int64_t positions, int64_t leaves) {
  const int64_t leaf = leaf_unit(positions, leaves);
  std::vector<SamplePlan::Piece> pieces;
  for (int64_t begin = held.begin; begin < held.end; begin += leaf) {
    pieces.push_back({begin / leaf, begin - held.begin, std::min(begin + leaf, held.end) - begin});
  }
  return pieces;
}

}  // namespace tessera::sums
