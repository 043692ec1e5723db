// Blocks of a checkpoint that are read and checked while others are dealt out.
#pragma once

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/format/range_reader.h"

namespace tessera::checkpoint {

// Bytes of one file.
struct FileRange {
  int64_t file = 0;  // an index among the manifest's
  int64_t begin = 0, end = 0;
};

// Reads ranges in their order, a few ahead of the one that is asked for. A thread of its own reads; one other uses
// this.
class ReadAhead {
 public:
  // `reader` is used by no one else until this is destroyed.
  ReadAhead(RangeReader& reader, std::vector<FileRange> ranges);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The bytes of the next range, until the next call. Throws what reading it threw.
  const char* next();

 private:
  static constexpr size_t kSlots = 5;  // one that is used, one that is read, and those between

  void read();

  RangeReader& reader_;
  const std::vector<FileRange> ranges_;
  std::array<at::Tensor, kSlots> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t read_ = 0, taken_ = 0;  // ranges
  bool is_ended_ = false;
  std::exception_ptr error_;  // of the range behind those that were read
  std::thread thread_;        // last: it uses the others
};

}  // namespace tessera::checkpoint
