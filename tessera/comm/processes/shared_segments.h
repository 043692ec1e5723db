// Memory that processes of one machine share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm/processes/c10d_messages.h"

namespace tessera::comm {

// Memory of each member of a group, which all of them map. Pages that nobody writes to cost nothing. No name leads to
// it: the kernel frees it with the last process that has it open, however that ends.
class SharedSegments {
 public:
  // Segments of `bytes`, all zeros. Null on all members if one of them cannot see another's: in another container, or
  // of another user. `round` is the call that needs them; `hash` tells them from others that are opened in that call.
  // Collective over the group; throws as ProcessJob::run.
  static std::unique_ptr<SharedSegments> open(const C10dMessages& messages, const Round& round, uint64_t hash,
                                              int64_t bytes);

  ~SharedSegments();
  SharedSegments(const SharedSegments&) = delete;
  SharedSegments& operator=(const SharedSegments&) = delete;

  // That of the member at a position, on a page's boundary.
  std::byte* memory(int64_t member) const { return segments_[static_cast<size_t>(member)]; }

 private:
  SharedSegments(int64_t members, int64_t bytes);

  const int64_t bytes_;
  std::vector<std::byte*> segments_;  // null: not seen
};

}  // namespace tessera::comm
