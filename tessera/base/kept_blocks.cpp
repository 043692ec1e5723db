#include "tessera/base/kept_blocks.h"

#include <array>
#include <bit>
#include <new>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

namespace tessera::base {

namespace {

// Blocks are of as many bytes as their class: multiples of 64 up to 512, then eight classes for each power of two.
constexpr size_t kStep = 64, kSteps = 8;
constexpr int kSmallBits = 9;  // 512
constexpr size_t kClasses = kSteps + kSteps * (std::bit_width(kLargestKeptBlock) - 1 - kSmallBits);

struct SizeClass {
  size_t index, bytes;
};

SizeClass class_of(size_t bytes) {
  if (bytes <= kStep * kSteps) {
    const size_t steps = (bytes + kStep - 1) / kStep;
    return {steps - 1, steps * kStep};
  }
  const int bits = std::bit_width(bytes - 1) - 1;
  const size_t step = (size_t{1} << bits) / kSteps, steps = (bytes + step - 1) / step;
  return {kSteps * static_cast<size_t>(bits - kSmallBits) + steps - 1, steps * step};  // of 9 to 16 steps
}

// Stands before the memory of each tensor.
struct alignas(c10::gAlignment) Header {
  SizeClass size;
  Header* next;  // of the kept ones of its class

  void* memory() { return this + 1; }
  static Header* of(void* memory) { return static_cast<Header*>(memory) - 1; }
};

// Of one thread. Trivial, so that reaching it asks for no constructor.
struct Kept {
  std::array<Header*, kClasses> last;
  size_t bytes;
  bool is_open, is_closed;

  Header* take(size_t index) {
    Header* block = last[index];
    if (block) {
      last[index] = block->next;
      bytes -= block->size.bytes;
    }
    return block;
  }

  void keep(Header* block) {
    if (bytes + block->size.bytes > kKeptBytesOfThread) {
      free_all();
    }
    block->next = std::exchange(last[block->size.index], block);
    bytes += block->size.bytes;
  }

  void free_all() {
    for (Header*& list : last) {
      while (list) {
        c10::free_cpu(std::exchange(list, list->next));
      }
    }
    bytes = 0;
  }
};

Kept& kept_of_thread() {
  static thread_local Kept kept;
  Kept* place = &kept;
  asm("" : "+r"(place));  // one call for the thread's address, not one for each use
  return *place;
}

// Frees the blocks when the thread ends.
struct Closer {
  ~Closer() {
    Kept& kept = kept_of_thread();
    kept.is_closed = true;
    kept.free_all();
  }
};

bool is_open(Kept& kept) {
  if (!kept.is_open) {
    static thread_local Closer closer;
    (void)&closer;
    kept.is_open = true;
  }
  return !kept.is_closed;
}

void release(void* memory) {
  if (!memory) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(memory);
  Header* block = Header::of(memory);
  if (Kept& kept = kept_of_thread(); block->size.index < kClasses && is_open(kept)) {
    kept.keep(block);
  } else {
    c10::free_cpu(block);
  }
}

class KeepingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : block_of(bytes)->memory();
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static Header* block_of(size_t bytes) {
    const SizeClass size = bytes <= kLargestKeptBlock ? class_of(bytes) : SizeClass{kClasses, bytes};
    if (size.index < kClasses) {
      if (Header* kept = kept_of_thread().take(size.index)) {
        return kept;
      }
    }
    try {
      return new (c10::alloc_cpu(sizeof(Header) + size.bytes)) Header{size, nullptr};
    } catch (c10::Error&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
  }
};

}  // namespace

void keep_freed_blocks() {
#ifndef __SANITIZE_ADDRESS__  // it would not see what is read after it was freed
  static auto* const allocator = new KeepingAllocator;
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {
    c10::SetCPUAllocator(allocator);
  }
#endif
}

void free_kept_blocks() { kept_of_thread().free_all(); }

size_t kept_bytes() { return kept_of_thread().bytes; }

}  // namespace tessera::base
