// The state that rank threads share: a job, its groups, and how members meet, wait and fail.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/comm/call/call.h"

namespace tessera::comm {

class ThreadGroup;

// What went wrong first in a job.
struct Failure {
  int64_t rank = 0;
  std::string message;
  // The group whose members ran different programs, if that was it. Only compared, never followed.
  const ThreadGroup* diverged = nullptr;
  // All ranks waited for each other, each in another group.
  bool is_deadlock = false;
};

// One wait: who waits in which call, for whom (positions), until when.
struct Waiter {
  const Call& call;
  size_t member;
  std::chrono::milliseconds deadline;
  std::function<bool()> is_ready;
  std::function<bool()> may_leave;
  std::function<bool(size_t member)> is_missing;
};

// One job of rank threads. Thread-safe. One mutex guards the job and all its groups; each group has its own condition
// variable. The first failure ends the job: every waiting or later-arriving rank throws at once.
class ThreadJob {
 public:
  explicit ThreadJob(int64_t ranks);
  ThreadJob(const ThreadJob&) = delete;
  ThreadJob& operator=(const ThreadJob&) = delete;

  int64_t size() const { return static_cast<int64_t>(finished_.size()); }

  // stop_requests() when the job was made; another number stops it.
  uint64_t stops_before() const { return stops_before_; }

  // `rank` threw outside of any collective: wakes the others. The first call counts.
  void fail(int64_t rank, std::string message);

  // `rank` will take part in nothing any more; whoever waits for it throws DivergenceError.
  void finish(int64_t rank);

  // What went wrong first, if anything did.
  std::optional<Failure> failure();

  // `in barrier over tp`, `in no collective`, `finished`.
  std::string where(int64_t rank);

  // The group over global `ranks` that `rank`, one of them, joins: its k-th with that name and these ranks is the k-th
  // of the others. Waits for nobody.
  std::shared_ptr<ThreadGroup> open(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank);

 private:
  friend class ThreadGroup;

  // Groups of one name and rank list that some member has yet to join.
  struct Family {
    std::map<int64_t, int64_t> joined_by;  // groups joined so far, by rank
    struct Opening {
      std::shared_ptr<ThreadGroup> group;
      size_t joined = 0;
    };
    std::map<int64_t, Opening> openings;  // by number
  };

  // The following want the mutex held.
  void set_failure(Failure failure);
  std::string where_is(int64_t rank) const;
  // Whether every rank waits, or has finished, and nothing is there that one of them waits for.
  bool is_deadlocked() const;

  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;
  std::vector<bool> finished_;
  std::vector<const Waiter*> waiting_;  // by rank; null: it does not
  int64_t idle_ = 0;                    // ranks that wait or have finished
  std::set<ThreadGroup*> groups_;
  std::map<std::pair<std::string, std::vector<int64_t>>, Family> families_;
  const uint64_t stops_before_;
};

// The rendezvous of one group. Each round all members bring a Call; once the last has come nobody leaves before all is
// done, so that a member's tensors outlive their readers. Small rounds are done by the last to arrive, large ones by
// all together. The job must outlive its groups.
class ThreadGroup {
 public:
  ThreadGroup(ThreadJob& job, std::vector<int64_t> ranks);
  ~ThreadGroup();

  // Runs the member's `round`-th collective.
  void meet(size_t member, uint64_t round, const Call& call, std::chrono::milliseconds deadline);

  // Leaves a message (`number`-th from position `from` to `to` with its tag) and returns. The tensor must not be
  // written again.
  void post(const Call& call, size_t from, int64_t number, at::Tensor message);

  // Waits for that message.
  at::Tensor take(const Call& call, size_t to, int64_t number, std::chrono::milliseconds deadline);

  const std::vector<int64_t>& ranks() const { return ranks_; }

 private:
  friend class ThreadJob;
  using Lock = std::unique_lock<std::mutex>;
  using MessageKey = std::tuple<size_t, size_t, int64_t, int64_t>;  // from, to, tag, number

  void wait(Lock& lock, const Waiter& waiter);
  void throw_if_failed(const Call& call, size_t member);
  [[noreturn]] void throw_failure(const Call& call, size_t member);
  [[noreturn]] void throw_finished(const Waiter& waiter, size_t missing);
  [[noreturn]] void throw_timeout(const Waiter& waiter);
  [[noreturn]] void throw_deadlock(const Waiter& waiter);

  void lead(size_t member, uint64_t round);
  void follow(Lock& lock, size_t member, uint64_t round, const Call& call, std::chrono::milliseconds deadline);
  void run_together(size_t member, uint64_t round);
  void run_alone(size_t member);
  void close(uint64_t round);
  bool is_small() const;

  ThreadJob& job_;
  const std::vector<int64_t> ranks_;
  std::condition_variable changed_;
  std::vector<const Call*> calls_;  // by position; null: not arrived
  size_t arrived_ = 0;
  bool running_ = false;             // all have arrived
  std::atomic<size_t> finished_{0};  // members done with their part
  std::atomic<uint64_t> opened_{0};  // rounds opened for work by all
  std::atomic<uint64_t> closed_{0};  // rounds done
  std::map<MessageKey, at::Tensor> messages_;
};

}  // namespace tessera::comm
