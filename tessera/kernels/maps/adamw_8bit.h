// One step of AdamW whose moments are kept in eight bits.
//
// As Dettmers et al. (2022): a row is cut into blocks of 256 elements, the last of which may be short. A block of a
// moment is one float32 scale, the largest magnitude in it, and a code of 8 bits for each element: a place in a table
// of 256 values in [-1, 1] (average) or [0, 1] (square) that are dense near zero, to seven powers of ten. A block's
// bits depend on its own elements alone, so any cut between blocks gives the bits of the whole, on every instruction
// set and number of threads.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/kernels/maps/optimizer_options.h"

namespace tessera::kernels {

inline constexpr int64_t kMomentBlock = 256;

// The values that codes stand for, in ascending order: of each power of ten 10^-6 ... 1 the middles of 2^i equal steps
// between a tenth of it and itself, i = 0 ... 6, and their negatives; or of 2^(i+1) steps without negatives; 0 and 1.
using CodeValues = std::array<float, 256>;
const CodeValues& signed_code_values();
const CodeValues& unsigned_code_values();

// How many blocks a row of `columns` elements has.
inline int64_t moment_blocks(int64_t columns) { return (columns + kMomentBlock - 1) / kMomentBlock; }

// One moment of [rows, columns]: codes, and of each row the scales of its blocks.
struct Moment8bit {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
};

// adamw_step on [rows, columns] dense elements: the moments are read from their codes, stepped, used, and kept as the
// nearest codes (of two equally near ones the lower). A square above zero is never kept as zero, as the next step would
// divide by eps alone. Where a block has an infinity or NaN its scale is one, and so is all that is read from it.
// `columns` is positive.
void adamw_8bit_step(const AdamW& options, int64_t rows, int64_t columns, float* parameter, const float* grad,
                     Moment8bit average, Moment8bit square);

}  // namespace tessera::kernels
