#include "tessera/checkpoint/ranks/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/ranks/contents.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kPage = size_t{2} << 20;  // a large one
constexpr size_t kLeast = size_t{256} << 20;
constexpr size_t kAlignment = 64;

// Past the caches, which would first read what is overwritten: whoever reads the copy does so when they have long lost
// it. `to` is aligned to kAlignment.
void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  size_t at = 0;
#ifdef __SSE2__
  constexpr size_t kWord = sizeof(__m128i);
  for (; at + kAlignment <= size; at += kAlignment) {
    for (size_t word = at; word < at + kAlignment; word += kWord) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + word),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + word)));
    }
  }
  _mm_sfence();  // before another thread is told of them
#endif
  std::memcpy(to + at, from + at, size - at);
}

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
  if (is_plain_memory(tensor) && tensor.numel() > 0) {
    copy_bytes(static_cast<std::byte*>(result.mutable_data_ptr()),
               static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  } else {
    result.copy_(tensor.detach());
  }
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
