#include "tessera/checkpoint/ranks/read_ahead.h"

#include <algorithm>
#include <utility>

#include <ATen/EmptyTensor.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

ReadAhead::ReadAhead(RangeReader& reader, std::vector<FileRange> ranges) : reader_(reader), ranges_(std::move(ranges)) {
  int64_t most = 0;
  for (const auto& range : ranges_) {
    most = std::max(most, range.end - range.begin);
  }
  for (size_t i = 0; i < std::min(kSlots, ranges_.size()); ++i) {
    slots_[i] = at::Tensor(at::detail::empty_cpu({most}, at::kByte));
  }
  thread_ = std::thread([this] { read(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(mutex_);
    is_ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::read() {
  std::unique_lock lock(mutex_);
  while (read_ < ranges_.size()) {
    // The range that was taken last and those behind it stay where they are.
    changed_.wait(lock, [this] { return is_ended_ || read_ < std::max<size_t>(taken_, 1) - 1 + kSlots; });
    if (is_ended_) {
      return;
    }
    const auto& range = ranges_[read_];
    auto* data = static_cast<char*>(slots_[read_ % kSlots].mutable_data_ptr());
    lock.unlock();
    std::exception_ptr error;
    try {
      reader_.read(range.file, range.begin, range.end, data);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      error_ = error;
      changed_.notify_all();
      return;
    }
    ++read_;
    changed_.notify_all();
  }
}

const char* ReadAhead::next() {
  std::unique_lock lock(mutex_);
  TESSERA_ASSERT(taken_ < ranges_.size(), "there are ", ranges_.size(), " ranges");
  ++taken_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return read_ >= taken_ || error_; });
  if (read_ < taken_) {
    std::rethrow_exception(error_);
  }
  return static_cast<const char*>(slots_[(taken_ - 1) % kSlots].const_data_ptr());
}

}  // namespace tessera::checkpoint
