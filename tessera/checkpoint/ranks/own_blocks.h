// The blocks of a checkpoint that one rank reads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/ranks/host_memory.h"

namespace tessera::checkpoint {

// Bytes of one file.
struct FileRange {
  int64_t file = 0;  // an index among the manifest's
  int64_t begin = 0, end = 0;
};

// Reads and checks ranges while its owner does something else, and keeps all of them.
class OwnBlocks {
 public:
  // Begins to read, on so many threads, into `memory`, which outlives this as `checkpoint` does.
  OwnBlocks(const OpenCheckpoint& checkpoint, const std::vector<FileRange>& ranges, HostMemory& memory, int threads);
  // Ends the threads, after the ranges that they are reading.
  ~OwnBlocks();
  OwnBlocks(const OwnBlocks&) = delete;
  OwnBlocks& operator=(const OwnBlocks&) = delete;

  // Waits until nothing is read any more, or a little; whether nothing is. Throws what reading threw, but for damage.
  bool wait();

  // Once nothing is read any more: what is wrong with the first range that is not what was written, or nothing. Where
  // one is, those behind it may not be there.
  const std::string& damage() const { return damage_; }

  // The bytes of a range, in the order given.
  const std::byte* content(size_t range) const {
    return static_cast<const std::byte*>(contents_[range].const_data_ptr());
  }

  int64_t bytes_read() const { return bytes_read_; }

 private:
  void read();

  const OpenCheckpoint& checkpoint_;
  const std::vector<FileRange> ranges_;
  std::vector<at::Tensor> contents_;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t next_ = 0;  // the range that is read next
  size_t failed_;    // the first that was not read; their number: none
  size_t running_;   // threads
  std::string damage_;
  std::exception_ptr error_;
  int64_t bytes_read_ = 0;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace tessera::checkpoint
