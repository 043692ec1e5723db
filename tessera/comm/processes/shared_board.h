// Shared memory in which the members of a group meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm/processes/shared_segments.h"

namespace tessera::comm {

// A group's board: memory of each member that all of them can read, and steps in which they meet.
//
// Every member writes to its own memory alone, and reads what others wrote before the step that it has met them in.
class SharedBoard {
 public:
  // Bytes of each member's memory.
  static constexpr int64_t kBytes = 8 << 20;

  // Of a half: what is read in one step is overwritten two steps later, so users write to the halves in turn.
  static constexpr int64_t kHalf = kBytes / 2;

  // Of pieces: on what boundary they lie, and the least bytes for which meeting does not cost more than copies save.
  static constexpr int64_t kAlignment = 64, kLeastPiece = 4 << 10;

  // Null on all members if one of them cannot see another's memory (SharedSegments::open). `round` is the call that
  // needs it. Collective over the group.
  static std::unique_ptr<SharedBoard> open(const C10dMessages& messages, const Round& round);

  // What `member` wrote; kBytes, on a page's boundary.
  std::byte* memory(int64_t member) const;

  // Waits until all members have come to the same step of `round`; they agree by `hash`. What another wrote before it
  // can be read until this member comes to the next one; what this one wrote, be overwritten once it has met all in the
  // next one. Collective over the group; throws as ProcessJob::run.
  void meet(const Round& round, uint64_t hash);

  // Steps met so far.
  uint64_t steps() const { return steps_; }

 private:
  struct Segment;
  class MeetWork;

  SharedBoard(const C10dMessages& messages, std::unique_ptr<SharedSegments> segments);

  Segment& segment(int64_t member) const;

  const C10dMessages& messages_;
  const std::unique_ptr<SharedSegments> segments_;
  uint64_t steps_ = 0;
};

}  // namespace tessera::comm
