// What a rank that is a process knows of its job: where it waits itself, what the others say, and what went wrong
// first.
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
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/comm/call/call.h"
#include "tessera/comm/processes/process_links.h"

namespace tessera::comm {

// What went wrong first in a job of processes; every rank holds the same one.
struct JobFailure {
  enum class Kind : uint8_t { kThrew, kLost, kTimeout, kDiverged, kStopped };
  Kind kind = Kind::kThrew;
  int64_t rank = 0;
  std::string message;
  uint64_t group = 0;  // whose members ran different programs, if that was it
};

// How long the reason of a broken transfer may take to arrive.
inline constexpr std::chrono::milliseconds kReasonComes{1500};

struct ProcessOptions {
  // How long a rank waits for the others, at the start and in one collective.
  std::chrono::milliseconds deadline{60000};
  // After how long a wait names, on stderr, the ranks that it waits for.
  std::chrono::milliseconds warn_after{10000};
  // Intra-op threads, at most OMP_THREAD_LIMIT; 0: max(1, cores / ranks of this machine).
  int intra_op_threads = 0;
  // Whether ranks compare the programs they have run (Program) on every collective.
  bool compare_programs = true;
  // Whether a rank that stays outside of collectives is ended two seconds after another failed. Off where ranks are not
  // alone in their process.
  bool ends_process = true;
};

// One collective (or message) of the calling rank: which one, and of what group.
struct Round {
  const Call& call;
  uint64_t group;  // equal on all members
  int64_t number;  // of the group's collectives, or of the messages with this peer and tag
};

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// One rank's end of a job of processes. Used by the rank's thread and by that of its links.
//
// How ranks fail together: while a rank waits for tensors, its links watch. Another rank's death, its error, its
// goodbye, the deadline or a signal ends the wait by aborting it. Two hundred milliseconds into a wait the rank asks
// the members of the group where they are; a member that is in the same collective with another call, or has finished
// without it, is a divergence, and both ranks' programs are compared as rank threads compare them. The first failure
// goes to every rank.
class ProcessJob : private ProcessLinks::Listener {
 public:
  // Connects all ranks (ProcessLinks). A number of stop_requests other than `stops_before` stops the job. Collective
  // over all.
  ProcessJob(const StorePtr& store, int64_t rank, int64_t size, const ProcessOptions& options, uint64_t stops_before);
  ~ProcessJob() override;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  bool is_one_machine() const { return links_->is_one_machine(); }
  const std::string& address() const { return links_->address(); }  // see ProcessLinks

  // Starts transfers and waits for them as `round` of its group: `start` makes the works. Throws what ended the wait,
  // with all works aborted: then nobody touches their tensors any more.
  void run(const Round& round, const std::function<void(Works&)>& start);

  // A message is on its way to its receiver, which may ask whether it was sent.
  void note_sent(const Round& round);

  // The same; keeps it until its receiver has it. `tensor` is the job's own.
  void keep(const Round& round, at::Tensor tensor, c10::intrusive_ptr<c10d::Work> work);

  // Throws if the job has failed or was asked to stop. `call` is what the rank is about to do; null: nothing in
  // particular.
  void throw_if_failed(const Call* call, uint64_t group);

  // The rank threw outside of any collective: tells all.
  void fail(const std::string& message);

  // The members of `group` run different programs, as the rank has found by itself: tells all.
  void diverge(const std::string& message, uint64_t group);

  // The rank is done: says goodbye, and waits until all have done so. Throws if another failed.
  void finish();

  std::optional<JobFailure> failure() const;

 private:
  using Clock = std::chrono::steady_clock;

  // What a member says of itself.
  struct Answer {
    bool is_finished = false;
    int64_t number = 0;  // rounds of the group that it has begun, or messages to this rank with the tag in question
    std::string where;
  };

  // The collective that the rank is in.
  struct Waiting {
    const Round* round = nullptr;  // null: none
    uint64_t id = 0;
    Works works;
    Clock::time_point begin, next_question;
    std::chrono::milliseconds pause{};
    bool is_warned = false;
    std::map<int64_t, Answer> answers;  // by position
  };

  // A message whose receiver has not taken it yet.
  struct Kept {
    uint64_t group;
    int64_t to, tag, number;
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
  };

  void on_message(int64_t from, const std::string& message) override;
  void on_lost(int64_t rank) override;
  void on_tick() override;

  void take(int64_t from, const std::string& message);
  void end_wait();
  void set_failure(JobFailure failure, bool tell = true);
  [[noreturn]] void throw_failure(const Call* call, uint64_t group);
  void watch_wait(Clock::time_point now);
  void ask();
  void answer(int64_t from, const std::string& question);
  void judge(int64_t from, const std::string& message);
  void end_process_if_stuck(Clock::time_point now);
  std::string missing() const;
  std::string where() const;
  void drain();

  const int64_t rank_, size_;
  const ProcessOptions options_;
  const uint64_t stops_before_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<JobFailure> failure_;
  std::atomic<bool> failed_{false};
  Clock::time_point failed_at_;
  bool is_told_ = false;  // the rank's thread knows of the failure
  bool is_finished_ = false;
  std::vector<bool> gone_;                                          // ranks that said goodbye
  std::map<uint64_t, int64_t> begun_;                               // rounds begun, by group
  std::map<std::tuple<uint64_t, int64_t, int64_t>, int64_t> sent_;  // messages, by group, receiver and tag
  Waiting waiting_;
  std::vector<Kept> outbox_;
  bool ends_ = false;
  std::thread draining_;                 // waits for the outbox; started by the first message
  std::unique_ptr<ProcessLinks> links_;  // last: it calls back
};

}  // namespace tessera::comm
