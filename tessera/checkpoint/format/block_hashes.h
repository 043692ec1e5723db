// Checksums of the blocks of a file: XXH3-64 of each run of so many bytes, whatever stands there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// Bytes of a block where nobody asks for another size.
constexpr int64_t kBlockSize = int64_t{4} << 20;

// XXH3-64 with seed 0: finds every change of up to 64 bits that lie together, and any other but once in 2^64.
uint64_t checksum(const void* data, size_t size);
uint64_t checksum(std::string_view text);

// Blocks of a file: the last one may be short, an empty file has none.
constexpr int64_t block_count(int64_t size, int64_t block_size) { return (size + block_size - 1) / block_size; }

// Hashes a file while it is written, in pieces of any sizes. One thread.
class BlockHasher {
 public:
  explicit BlockHasher(int64_t block_size = kBlockSize);
  ~BlockHasher();
  BlockHasher(BlockHasher&&) noexcept;

  void add(const void* data, size_t size);

  // Bytes so far.
  int64_t size() const { return size_; }

  // The checksums of all blocks, after the last byte.
  std::vector<uint64_t> finish();

 private:
  struct State;

  void end_block();

  std::unique_ptr<State> state_;
  int64_t block_size_;
  int64_t size_ = 0;
  std::vector<uint64_t> blocks_;
};

}  // namespace tessera::checkpoint
