// Which samples of a step the rows of a micro-batch are.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace tessera::layout {

// Interned and immortal; beside a Spec, not in it, so that equal micro-batches share plans. Rows from `row` on, up to
// the next piece, are samples from `sample` on: each data-parallel rank owns one contiguous block of the step's
// samples, so a micro-batch is made of one run from every block.
struct Origin {
  struct Piece {
    int64_t row = 0;
    int64_t sample = 0;
    auto operator<=>(const Piece&) const = default;
  };
  std::vector<Piece> pieces;  // ascending by row, the first at row 0

  // Equal pieces are one address. Thread-safe.
  static const Origin* make(std::vector<Piece> pieces);
};

// The sample that stands in row `row`; without an origin rows are samples.
int64_t sample_of_row(const Origin* origin, int64_t row);

}  // namespace tessera::layout
