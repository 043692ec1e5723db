// A sum over the samples of a step, which waits until all of them are there: its leaves, and what a rank has of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout/spec.h"
#include "tessera/sums/lattice.h"

namespace tessera::sums {

// How the tokens of a step are cut into leaves, (batch leaf, sequence leaf) with the sequence innermost.
struct TokenLeaves {
  int64_t samples = 0;      // of the step
  int64_t sample_leaf = 1;  // samples of a batch leaf
  int64_t sequence_leaves = 1;
  Node root;
  bool operator==(const TokenLeaves&) const = default;

  // Of a step of `samples` samples with `positions` positions each.
  static TokenLeaves of(int64_t samples, int64_t positions, const Lattice& lattice);

  layout::Range samples_of(int64_t leaf) const;  // of a batch leaf
};

// How the terms of one call are cut: sample by sample, and each of them by the leaves of its positions.
struct SamplePlan {
  // An operand to cut to the tokens of one sample: `samples` is the dim of the samples, or of [outer, samples,
  // positions / outer]; `positions` that of the positions, or -1.
  struct Operand {
    int arg = 0;
    int64_t samples = -1;
    int64_t positions = -1;
  };
  struct Piece {
    int64_t leaf = 0;               // of the sequence
    int64_t begin = 0, length = 0;  // positions of this rank's part
    bool operator==(const Piece&) const = default;
  };
  // The dim of an operand that counts samples or positions, for the parts of other ranks; none where `dim` is -1.
  struct Counted {
    layout::Spec spec;
    int64_t dim = -1;
    layout::Range range_at(const layout::Coord& coord) const;
  };
  TokenLeaves leaves;
  std::vector<Operand> operands;
  std::vector<Piece> pieces;
  layout::Range rows;               // of the micro-batch, on this rank
  int64_t micro_batch = 0;          // samples of the micro-batch, on all ranks
  int64_t outer = 1;                // dims that stand before the samples in their dim, which is whole then
  int64_t positions = 1;            // of a sample, in the dim of the samples
  std::vector<int64_t> merge_axes;  // fastest leaves first
  layout::Spec terms;               // the layout of the sums, Replicate where they will be merged
  Counted samples, sequence;

  // `rows` and `pieces` of the rank at `coord`.
  layout::Range rows_at(const layout::Coord& coord) const;
  std::vector<Piece> pieces_at(const layout::Coord& coord) const;
};

// The positions `held` of a sample's `positions`, which begin and end between `leaves` leaves.
std::vector<SamplePlan::Piece> pieces_of(const layout::Range& held, int64_t positions, int64_t leaves);

}  // namespace tessera::sums
