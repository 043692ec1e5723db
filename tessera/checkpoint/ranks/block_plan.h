// Which rank reads each block of a checkpoint's files, and what of it each rank needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/catalogue/catalogue.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/reshard/holdings.h"

namespace tessera::checkpoint {

// Elements of one slice that lie in one block: a box of the whole tensor.
struct BlockPiece {
  size_t entry = 0;        // in the wanted catalogue
  Box slice;               // the stored slice
  int64_t first = 0;       // the first of its elements in the block, counted in the slice
  int64_t begin = 0;       // where that is: a byte of the file
  std::vector<Box> boxes;  // all of them
};

struct Block {
  int64_t file = 0;            // in the manifest
  int64_t begin = 0, end = 0;  // bytes of the file
  int64_t reader = 0;          // the rank that reads it
  std::vector<BlockPiece> pieces = {};
};

// The blocks of a checkpoint's files in which something lies that is wanted, file by file in the order of their bytes;
// the same on every rank. `found` is the checkpoint's catalogue, which fits `wanted`. The reader of a block is one that
// needs some of it, and ranks read about as much as each other where their needs allow. Throws DataError if the
// manifest lacks a tensor of its catalogue.
std::vector<Block> plan_blocks(const Manifest& manifest, const catalogue::Catalogue& found,
                               const catalogue::Catalogue& wanted);

}  // namespace tessera::checkpoint
