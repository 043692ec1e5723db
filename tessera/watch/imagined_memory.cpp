#include "tessera/watch/imagined_memory.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include <sys/mman.h>

#include <c10/core/CPUAllocator.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::watch {
namespace {

// Blocks from here on are addresses only. Below, a page would be no less.
constexpr size_t kLarge = size_t{1} << 16;

// Above that of allocators that others set, which go on to serve threads that do not imagine.
constexpr uint8_t kPriority = 255;

thread_local std::shared_ptr<ImaginedBytes>* current = nullptr;

// Owns the memory of one tensor.
struct Block {
  std::shared_ptr<ImaginedBytes> account;
  int64_t bytes = 0;
  c10::DataPtr small;
  void* large = nullptr;

  ~Block() {
    account->live -= bytes;
    if (large != nullptr) {
      ::munmap(large, static_cast<size_t>(bytes));
    }
  }
};

// Blocks by where they are: kernels that take memory for themselves hand back its place, ours or not.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Block>> by_place;
  c10::DeleterFnPtr below = nullptr;  // frees what is not ours
};

Blocks& blocks() {
  static auto* const all = new Blocks;  // tensors may outlive everything
  return *all;
}

void release(void* data) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard lock(blocks().mutex);
    if (auto found = blocks().by_place.extract(data)) {
      block = std::move(found.mapped());
    }
  }
  if (!block) {
    blocks().below(data);
  }
}

class ImaginingAllocator final : public c10::Allocator {
 public:
  explicit ImaginingAllocator(c10::Allocator* below) : below_(below) { blocks().below = below->raw_deleter(); }

  c10::DataPtr allocate(size_t bytes) override {
    if (current == nullptr || bytes == 0) {
      return below_->allocate(bytes);
    }
    auto block = std::make_unique<Block>();
    block->account = *current;
    void* data = nullptr;
    if (bytes < kLarge) {
      block->small = below_->allocate(bytes);
      data = std::memset(block->small.get(), 0, bytes);
    } else {
      data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TESSERA_CHECK(data != MAP_FAILED, "[imagined] no addresses for ", base::human_bytes(static_cast<int64_t>(bytes)),
                    ": ", std::strerror(errno), "; accepted: a larger limit of virtual memory (ulimit -v)");
      ::madvise(data, bytes, MADV_NOHUGEPAGE);
      block->large = data;
    }
    block->bytes = static_cast<int64_t>(bytes);
    block->account->add(block->bytes);
    const std::lock_guard lock(blocks().mutex);
    blocks().by_place[data] = std::move(block);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t count) const override { below_->copy_data(to, from, count); }

 private:
  c10::Allocator* below_;
};

// Puts an allocator of ours over the process's, unless one is there. It stays.
void stand_over_memory() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto* const below = c10::GetAllocator(c10::kCPU);
  if (dynamic_cast<ImaginingAllocator*>(below) == nullptr) {
    c10::SetAllocator(c10::kCPU, new ImaginingAllocator(below), kPriority);
  }
}

}  // namespace

void ImaginedBytes::add(int64_t bytes) {
  const int64_t now = live += bytes;
  int64_t seen = peak;
  while (seen < now && !peak.compare_exchange_weak(seen, now)) {
  }
}

void ImaginedBytes::touch(int64_t bytes) {
  add(bytes);
  live -= bytes;
}

ImaginedMemory::ImaginedMemory(std::shared_ptr<ImaginedBytes> bytes) {
  stand_over_memory();
  current = new std::shared_ptr<ImaginedBytes>(std::move(bytes));
}

ImaginedMemory::~ImaginedMemory() {
  delete current;
  current = nullptr;
}

bool ImaginedMemory::is_on() { return current != nullptr; }

ImaginedBytes& ImaginedMemory::bytes() {
  TESSERA_ASSERT(is_on(), "no imagined memory on this thread");
  return **current;
}

}  // namespace tessera::watch
