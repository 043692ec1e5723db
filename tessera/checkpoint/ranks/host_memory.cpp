#include "tessera/checkpoint/ranks/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kPage = size_t{2} << 20;  // a large one
constexpr size_t kLeast = size_t{256} << 20;
constexpr size_t kAlignment = 64;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

std::shared_ptr<HostMemory> HostMemory::of_thread() {
  thread_local std::shared_ptr<HostMemory> own;
  if (own == nullptr || own->is_held_.load(std::memory_order_acquire)) {
    own = std::make_shared<HostMemory>();
  }
  own->is_held_ = true;
  return {own.get(), [own = own](HostMemory* memory) { memory->take_back(); }};  // when the last holder lets go
}

HostMemory::~HostMemory() {
  for (const auto& region : regions_) {
    ::munmap(region.begin, region.size);
  }
}

at::Tensor HostMemory::empty(c10::IntArrayRef sizes, at::ScalarType dtype) {
  const auto size = round_up(static_cast<size_t>(c10::multiply_integers(sizes)) * at::elementSize(dtype), kAlignment);
  while (region_ < regions_.size() && regions_[region_].size - used_ < size) {
    ++region_;
    used_ = 0;
  }
  if (region_ == regions_.size()) {
    const size_t room = std::max(round_up(size, kPage), kLeast);
    void* begin = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TESSERA_CHECK_AS(DataError, begin != MAP_FAILED, "[checkpoint] no memory for ",
                     base::human_bytes(static_cast<int64_t>(room)), " beside the program's own: ", std::strerror(errno),
                     "; accepted: a host with room for a copy of what a rank saves or loads");
    ::madvise(begin, room, MADV_HUGEPAGE);  // refused where the system has none: then it goes without
    regions_.push_back({static_cast<std::byte*>(begin), room});
  }
  auto* data = regions_[region_].begin + used_;
  used_ += size;
  return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype));
}

at::Tensor HostMemory::copy(const at::Tensor& tensor) {
  auto result = empty(tensor.sizes(), tensor.scalar_type());
  result.copy_(tensor.detach());
  return result;
}

void HostMemory::take_back() {
  for (const auto& region : regions_) {
    ::madvise(region.begin, region.size, MADV_FREE);
  }
  region_ = used_ = 0;
  is_held_.store(false, std::memory_order_release);
}

}  // namespace tessera::checkpoint
