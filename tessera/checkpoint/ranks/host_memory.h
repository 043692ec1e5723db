// Memory of the host for what a save or a load holds beside the program's own tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::checkpoint {

// Tensors end to end in large pages. A page that is used for the first time costs more than what is copied to it, so
// the memory stays for the next save or load of the thread that asked for it; between them the system may take it for
// something else, and does when it has no other left (MADV_FREE). One thread takes tensors from it; it is destroyed by
// any.
class HostMemory {
 public:
  // The calling thread's. While somebody holds it, the next one who asks gets another, which then is the thread's.
  static std::shared_ptr<HostMemory> of_thread();

  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // A plain, contiguous tensor on the CPU; whoever uses it holds this too. Throws DataError where there is no memory.
  at::Tensor empty(c10::IntArrayRef sizes, at::ScalarType dtype);

  // A copy of a plain tensor on any device.
  at::Tensor copy(const at::Tensor& tensor);

 private:
  struct Region {
    std::byte* begin;
    size_t size;
  };

  void take_back();

  std::atomic<bool> is_held_ = false;
  std::vector<Region> regions_;
  size_t region_ = 0, used_ = 0;  // where the next tensor goes
};

}  // namespace tessera::checkpoint
