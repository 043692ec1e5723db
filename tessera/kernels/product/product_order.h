// The order of a canonical sum as the pieces a tile runs through. Internal to this floor.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/kernels/product/product_kernel.h"

namespace tessera::kernels::detail {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Consecutive pieces that are packed together.
struct Block {
  int64_t first_piece = 0, pieces = 0;
  int64_t first = 0, length = 0;  // in k
  int64_t first_step = 0, steps = 0;
  int64_t depth = 0;  // how many sums wait before it
};

struct ProductOrder {
  std::vector<Piece> pieces;  // at least one; of no steps for k = 0
  std::vector<Block> blocks;  // of at most `most_steps` steps, or one piece
  int64_t depth = 0;          // how many sums wait at most
  int64_t steps = 0;          // of all blocks
  int64_t most_steps = 0;     // of a block
  bool has_empty_leaf = false;
};

// Leaves of `leaf` elements hold `k`: pieces of kChainSteps make a leaf, leaves make the whole. `leaf` is at least 1.
// Without `spread` an element is a step.
ProductOrder make_order(int64_t k, int64_t leaf, int64_t leaves, int64_t most_steps, const Spread* spread = nullptr);

}  // namespace tessera::kernels::detail
