// Blocks of memory that were freed, and whether somebody writes to them.
#pragma once

#include <cstdint>

namespace tessera::support {

// For a scope, small blocks that operator delete is given are filled and not given back. One at a time. A program that
// is linked with freed_blocks.cpp has these operators.
class FreedBlocks {
 public:
  FreedBlocks();
  ~FreedBlocks();
  FreedBlocks(const FreedBlocks&) = delete;
  FreedBlocks& operator=(const FreedBlocks&) = delete;

  // How many were written to since they were freed. Throws if more were freed than there is room for.
  int64_t written() const;
};

}  // namespace tessera::support
