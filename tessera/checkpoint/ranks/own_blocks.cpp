#include "tessera/checkpoint/ranks/own_blocks.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/error.h"
#include "tessera/checkpoint/format/range_reader.h"

namespace tessera::checkpoint {
namespace {

constexpr std::chrono::milliseconds kLittle(10);

}  // namespace

OwnBlocks::OwnBlocks(const OpenCheckpoint& checkpoint, const std::vector<FileRange>& ranges, HostMemory& memory,
                     int threads)
    : checkpoint_(checkpoint),
      ranges_(ranges),
      failed_(ranges.size()),
      running_(std::min(static_cast<size_t>(threads), ranges.size())) {
  for (const auto& range : ranges_) {
    contents_.push_back(memory.empty({range.end - range.begin}, at::kByte));
  }
  for (size_t i = running_; i > 0; --i) {
    threads_.emplace_back([this] { read(); });
  }
}

OwnBlocks::~OwnBlocks() {
  {
    const std::scoped_lock lock(mutex_);
    next_ = ranges_.size();
  }
  for (auto& thread : threads_) {
    thread.join();
  }
}

void OwnBlocks::read() {
  RangeReader reader(*checkpoint_.store, checkpoint_.folder, checkpoint_.manifest);
  std::unique_lock lock(mutex_);
  while (next_ < ranges_.size()) {
    const size_t own = next_++;
    lock.unlock();
    std::exception_ptr error;
    try {
      reader.read(ranges_[own].file, ranges_[own].begin, ranges_[own].end, contents_[own].mutable_data_ptr());
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && own < failed_) {  // those before it are being read, or were
      failed_ = own;
      error_ = error;
      next_ = ranges_.size();
    }
  }
  bytes_read_ += reader.bytes_read();
  if (--running_ == 0) {
    ended_.notify_all();
  }
}

bool OwnBlocks::wait() {
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, kLittle, [this] { return running_ == 0; })) {
    return false;
  }
  if (error_) {
    try {
      std::rethrow_exception(error_);
    } catch (const DataError& error) {
      damage_ = base::message_of(error);
    }
  }
  return true;
}

}  // namespace tessera::checkpoint
