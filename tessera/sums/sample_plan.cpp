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

std::vector<SamplePlan::Piece> pieces_of(const layout::Range& held, int64_t positions, int64_t leaves) {
  const int64_t leaf = leaf_unit(positions, leaves);
  std::vector<SamplePlan::Piece> pieces;
  for (int64_t begin = held.begin; begin < held.end; begin += leaf) {
    pieces.push_back({begin / leaf, begin - held.begin, std::min(begin + leaf, held.end) - begin});
  }
  return pieces;
}

}  // namespace tessera::sums
