// Which rank needs what of the blocks of a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/catalogue/catalogue.h"
#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/reshard/holdings.h"

namespace tessera::checkpoint {

// Elements of a piece that a rank needs: a box of the whole tensor.
struct Need {
  const BlockPiece* piece = nullptr;
  Box box;
  int64_t element = 1;  // bytes of one
  int64_t elements() const { return reshard::numel(box); }
  int64_t bytes() const { return elements() * element; }
};

// The same on every rank, and in one order. A value; blocks outlive what is said of them.
class Needs {
 public:
  explicit Needs(const catalogue::Catalogue& wanted);

  std::vector<Need> of(const Block& block, int64_t rank) const;

  int64_t bytes_of(const Block& block, int64_t rank) const;

  // Ranks but for the reader that may need some of the block, from low to high.
  std::vector<int64_t> takers_of(const Block& block) const;

 private:
  std::vector<reshard::Holdings> holdings_;  // by entry
  std::vector<int64_t> elements_;
};

}  // namespace tessera::checkpoint
