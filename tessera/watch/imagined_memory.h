// Where imagined tensors lie. Internal to this floor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tessera::watch {

// Bytes of the tensors that one thread made.
struct ImaginedBytes {
  std::atomic<int64_t> live{0}, peak{0};

  void add(int64_t bytes);
  // Adds them and takes them off again.
  void touch(int64_t bytes);
};

// While it lives, CPU memory that this thread asks libtorch for is counted in `bytes` until it is freed, whoever frees
// it. Large blocks are addresses that nothing stands behind before they are written to; small ones are memory, zero at
// first.
class ImaginedMemory {
 public:
  explicit ImaginedMemory(std::shared_ptr<ImaginedBytes> bytes);
  ~ImaginedMemory();
  ImaginedMemory(const ImaginedMemory&) = delete;
  ImaginedMemory& operator=(const ImaginedMemory&) = delete;

  // Whether one lives on this thread.
  static bool is_on();

  // Of the one on this thread.
  static ImaginedBytes& bytes();
};

}  // namespace tessera::watch
