#include "tests/support/freed_blocks.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>

#include <malloc.h>

namespace {

constexpr size_t kLargest = 1024, kMost = size_t{1} << 20;
constexpr unsigned char kFill = 0xDE;

struct Block {
  unsigned char* memory;
  size_t bytes;
};

std::mutex lock_of_blocks;
Block* blocks = nullptr;  // null: none are kept
size_t count = 0;

bool keeps(void* memory) {
  const std::lock_guard lock(lock_of_blocks);
  if (!memory || !blocks || count == kMost) {
    return false;
  }
  const size_t bytes = ::malloc_usable_size(memory);
  if (bytes > kLargest) {
    return false;
  }
  auto* const first = static_cast<unsigned char*>(memory);
  std::fill_n(first, bytes, kFill);
  blocks[count++] = {first, bytes};
  return true;
}

}  // namespace

// Not inlined: a compiler that sees malloc and free takes them for a mismatch with new and delete.
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (!keeps(memory)) {
    std::free(memory);
  }
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace tessera::support {

FreedBlocks::FreedBlocks() {
  const std::lock_guard lock(lock_of_blocks);
  blocks = static_cast<Block*>(std::malloc(kMost * sizeof(Block)));
}

FreedBlocks::~FreedBlocks() {
  const std::lock_guard lock(lock_of_blocks);
  for (size_t i = 0; i < count; ++i) {
    std::free(blocks[i].memory);
  }
  std::free(blocks);
  blocks = nullptr;
  count = 0;
}

int64_t FreedBlocks::written() const {
  const std::lock_guard lock(lock_of_blocks);
  if (count == kMost) {
    throw std::length_error("[test] more blocks were freed than are kept");
  }
  return std::count_if(blocks, blocks + count, [](const Block& block) {
    return std::any_of(block.memory, block.memory + block.bytes, [](unsigned char byte) { return byte != kFill; });
  });
}

}  // namespace tessera::support
