#include "counting_allocator.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <c10/core/CPUAllocator.h>

#include "tessera/comm/core/context.h"

namespace tessera::support {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kRanks = 64;

struct Counter {
  std::atomic<int64_t> live{0}, peak{0}, largest{0};

  void add(int64_t bytes) {
    raise(peak, live += bytes);
    raise(largest, bytes);
  }

 private:
  static void raise(std::atomic<int64_t>& highest, int64_t value) {
    int64_t seen = highest;
    while (seen < value && !highest.compare_exchange_weak(seen, value)) {
    }
  }
};

Counter& counter_of(int64_t rank) {
  static std::array<Counter, kRanks + 2> counters;  // the last: of all other ranks together
  return counters.at(std::min(static_cast<size_t>(rank + 1), kRanks + 1));
}

// Stands before each block.
struct alignas(kAlignment) Header {
  c10::DataPtr memory;
  int64_t bytes = 0;
  Counter* counter = nullptr;
};

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - sizeof(Header));
  header->counter->live -= header->bytes;
  const c10::DataPtr memory = std::move(header->memory);
  header->~Header();
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* below) : below_(below) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    }
    const auto* context = comm::RankContext::current();
    Counter& counter = counter_of(context ? context->rank : -1);
    c10::DataPtr memory = below_->allocate(bytes + sizeof(Header));
    auto* header = new (memory.get()) Header();
    header->memory = std::move(memory);
    header->bytes = static_cast<int64_t>(bytes);
    header->counter = &counter;
    counter.add(header->bytes);
    void* data = header + 1;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

 private:
  c10::Allocator* below_;
};

}  // namespace

void count_allocations() {
  static auto* const allocator = new CountingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

Bytes bytes_of(int64_t rank) {
  const Counter& counter = counter_of(rank);
  return {counter.live, counter.peak, counter.largest};
}

void reset_peak(int64_t rank) {
  Counter& counter = counter_of(rank);
  counter.peak = counter.live.load();
  counter.largest = 0;
}

}  // namespace tessera::support
