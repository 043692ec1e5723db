// Reads of what other members of a group have in their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::comm {

// Bytes at `from`, an address in the memory of the member that is read, become those at `to`, in the reader's.
struct Get {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

// All of them within one process.
void copy_gets(const std::vector<Get>& gets);

// One-sided reads (MPI_Get of a dynamic window): the member that is read takes no part. Where what it shows lies, its
// members say by a collective; from then on, until they meet again, it stays and is not written to. One thread at a
// time; the communicator that opened it must outlive it.
class Window {
 public:
  virtual ~Window() = default;

  // Copies from the memory of the CPU that the member at that position has, which may be the reader itself. Empty gets
  // are left out, whatever their addresses. Throws CommError where the member has no such memory any more.
  virtual void get(int64_t member, const std::vector<Get>& gets) = 0;
};

}  // namespace tessera::comm
