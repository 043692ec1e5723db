#include "tessera/comm/processes/shared_board.h"

#include <atomic>
#include <utility>

#include "tessera/base/hash.h"
#include "tessera/comm/processes/shared_number.h"

namespace tessera::comm {
// One member's memory.
struct SharedBoard::Segment {
  SharedNumber step;   // that the member has come to
  uint64_t hashes[4];  // of its last steps; others are at most one behind
  alignas(4096) std::byte memory[kBytes];

  void come(uint32_t to, uint64_t hash) {
    hashes[to % 4] = hash;
    step.set(to);
  }

  bool has_come(uint32_t to, uint64_t hash) const {
    return static_cast<int32_t>(step.get() - to) >= 0 && hashes[to % 4] == hash;
  }
};

// Comes to a step, and waits for the others.
class SharedBoard::MeetWork : public c10d::Work {
 public:
  MeetWork(const SharedBoard& board, uint64_t hash)
      : board_(board), step_(static_cast<uint32_t>(board.steps_)), hash_(hash) {}

  bool wait(std::chrono::milliseconds) override {
    for (int64_t member = 0; member < board_.messages_.size(); ++member) {
      const Segment& segment = board_.segment(member);
      if (!segment.step.wait_until([&] { return segment.has_come(step_, hash_); }, is_aborted_)) {
        return false;
      }
    }
    return true;
  }

  void abort() override { is_aborted_ = true; }

 private:
  const SharedBoard& board_;
  const uint32_t step_;
  const uint64_t hash_;
  std::atomic<bool> is_aborted_{false};
};

std::unique_ptr<SharedBoard> SharedBoard::open(const C10dMessages& messages, const Round& round) {
  const uint64_t hash = base::hash_string("board", fingerprint_of(round));
  auto segments = SharedSegments::open(messages, round, hash, sizeof(Segment));
  return segments ? std::unique_ptr<SharedBoard>(new SharedBoard(messages, std::move(segments))) : nullptr;
}

SharedBoard::SharedBoard(const C10dMessages& messages, std::unique_ptr<SharedSegments> segments)
    : messages_(messages), segments_(std::move(segments)) {}

SharedBoard::Segment& SharedBoard::segment(int64_t member) const {
  return *reinterpret_cast<Segment*>(segments_->memory(member));
}

std::byte* SharedBoard::memory(int64_t member) const { return segment(member).memory; }

void SharedBoard::meet(const Round& round, uint64_t hash) {
  messages_.job().run(round, [&](Works& works) {
    segment(messages_.member()).come(static_cast<uint32_t>(++steps_), hash);
    works.push_back(c10::make_intrusive<MeetWork>(*this, hash));
  });
}

}  // namespace tessera::comm
