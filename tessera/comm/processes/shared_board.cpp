#include "tessera/comm/processes/shared_board.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <string>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/processes/sockets.h"

namespace tessera::comm {
namespace {

// How long a member looks for the others before it sleeps, and how long it sleeps before it looks whether the wait was
// aborted.
constexpr std::chrono::microseconds kLooks{20};
constexpr timespec kSleeps{.tv_sec = 0, .tv_nsec = 20'000'000};

// A file without a name.
class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

}  // namespace

// One member's memory.
struct SharedBoard::Segment {
  uint64_t token;              // tells it from what another process has open by the same number
  std::atomic<uint32_t> step;  // that the member has come to
  uint64_t hashes[4];          // of its last steps; others are at most one behind
  alignas(4096) std::byte memory[kBytes];

  // Null where it fails.
  static Segment* map(int file) {
    void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
  }

  // That of file `number` of process `process`; null if that is something else.
  static Segment* find(int64_t process, int64_t number, uint64_t its_token) {
    const File file(::open(c10::str("/proc/", process, "/fd/", number).c_str(), O_RDWR | O_CLOEXEC));
    struct stat status{};
    if (::fstat(file.get(), &status) != 0 || status.st_size != sizeof(Segment)) {
      return nullptr;
    }
    Segment* segment = map(file.get());
    if (!segment || segment->token == its_token) {
      return segment;
    }
    ::munmap(segment, sizeof(Segment));
    return nullptr;
  }

  void come(uint32_t to, uint64_t hash) {
    hashes[to % 4] = hash;
    step.store(to, std::memory_order_release);
    ::syscall(SYS_futex, &step, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  bool has_come(uint32_t to, uint64_t hash) const {
    return static_cast<int32_t>(step.load(std::memory_order_acquire) - to) >= 0 && hashes[to % 4] == hash;
  }

  // While the step is `seen`, for kSleeps at most.
  void sleep_at(uint32_t seen) const { ::syscall(SYS_futex, &step, FUTEX_WAIT, seen, &kSleeps, nullptr, 0); }
};

namespace {

// All members' `mine`, by position.
std::vector<std::vector<int64_t>> exchanged(const C10dMessages& messages, const Round& round, uint64_t hash,
                                            const std::vector<int64_t>& mine) {
  const at::Tensor own = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<int64_t>());
  std::vector<at::Tensor> all(messages.size(), own);
  messages.job().run(round, [&](Works& works) {
    for (int64_t i = 0; i < messages.size(); ++i) {
      if (i == messages.member()) {
        continue;
      }
      all[i] = at::empty_like(own);
      works.push_back(messages.receive(i, all[i], hash));
      works.push_back(messages.send(i, own, hash));
    }
  });
  std::vector<std::vector<int64_t>> result;
  for (const at::Tensor& each : all) {
    result.emplace_back(each.const_data_ptr<int64_t>(), each.const_data_ptr<int64_t>() + mine.size());
  }
  return result;
}

}  // namespace

// Comes to a step, and waits for the others.
class SharedBoard::MeetWork : public c10d::Work {
 public:
  MeetWork(const SharedBoard& board, uint64_t hash)
      : board_(board), step_(static_cast<uint32_t>(board.steps_)), hash_(hash) {}

  bool wait(std::chrono::milliseconds) override {
    const auto looks_until = std::chrono::steady_clock::now() + kLooks;
    for (const Segment* segment : board_.segments_) {
      while (true) {
        const uint32_t seen = segment->step.load(std::memory_order_acquire);
        if (segment->has_come(step_, hash_)) {
          break;
        }
        if (is_aborted_) {
          return false;
        }
        std::chrono::steady_clock::now() < looks_until ? std::this_thread::yield() : segment->sleep_at(seen);
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
  std::unique_ptr<SharedBoard> board(new SharedBoard(messages));
  const File file(::memfd_create("tessera", MFD_CLOEXEC));
  const uint64_t token = random_token(), hash = base::hash_string("board", fingerprint_of(round));
  if (::ftruncate(file.get(), sizeof(Segment)) == 0) {
    board->segments_[messages.member()] = Segment::map(file.get());
  }
  if (Segment* own = board->segments_[messages.member()]) {
    own->token = token;
  }
  const auto told = exchanged(messages, round, hash, {::getpid(), file.get(), static_cast<int64_t>(token)});
  for (int64_t i = 0; i < messages.size(); ++i) {
    if (i != messages.member()) {
      board->segments_[i] = Segment::find(told[i][0], told[i][1], static_cast<uint64_t>(told[i][2]));
    }
  }
  const bool sees_all = std::find(board->segments_.begin(), board->segments_.end(), nullptr) == board->segments_.end();
  for (const auto& answer : exchanged(messages, round, base::hash_combine(hash, 1), {sees_all})) {
    if (!answer[0]) {
      return nullptr;
    }
  }
  return board;
}

SharedBoard::SharedBoard(const C10dMessages& messages) : messages_(messages), segments_(messages.size()) {}

SharedBoard::~SharedBoard() {
  for (Segment* segment : segments_) {
    if (segment) {
      ::munmap(segment, sizeof(Segment));
    }
  }
}

std::byte* SharedBoard::memory(int64_t member) const { return segments_[member]->memory; }

void SharedBoard::meet(const Round& round, uint64_t hash) {
  messages_.job().run(round, [&](Works& works) {
    segments_[messages_.member()]->come(static_cast<uint32_t>(++steps_), hash);
    works.push_back(c10::make_intrusive<MeetWork>(*this, hash));
  });
}

}  // namespace tessera::comm
