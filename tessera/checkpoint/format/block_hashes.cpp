#include "tessera/checkpoint/format/block_hashes.h"

#include <algorithm>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

uint64_t checksum(const void* data, size_t size) { return XXH3_64bits(data, size); }

uint64_t checksum(std::string_view text) { return checksum(text.data(), text.size()); }

struct BlockHasher::State {
  XXH3_state_t value;
};

BlockHasher::BlockHasher(int64_t block_size) : state_(std::make_unique<State>()), block_size_(block_size) {
  TESSERA_CHECK(block_size > 0, "[checkpoint] blocks of ", block_size, " bytes; accepted: at least 1");
  XXH3_64bits_reset(&state_->value);
}

BlockHasher::~BlockHasher() = default;

BlockHasher::BlockHasher(BlockHasher&&) noexcept = default;

void BlockHasher::add(const void* data, size_t size) {
  const auto* next = static_cast<const char*>(data);
  while (size > 0) {
    const auto count = std::min(static_cast<int64_t>(size), block_size_ - size_ % block_size_);
    XXH3_64bits_update(&state_->value, next, static_cast<size_t>(count));
    next += count;
    size -= static_cast<size_t>(count);
    size_ += count;
    if (size_ % block_size_ == 0) {
      end_block();
    }
  }
}

void BlockHasher::end_block() {
  blocks_.push_back(XXH3_64bits_digest(&state_->value));
  XXH3_64bits_reset(&state_->value);
}

std::vector<uint64_t> BlockHasher::finish() {
  if (size_ % block_size_ != 0) {
    end_block();
  }
  return std::move(blocks_);
}

}  // namespace tessera::checkpoint
