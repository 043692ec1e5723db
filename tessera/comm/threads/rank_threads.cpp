#include "tessera/comm/threads/rank_threads.h"

#include <iostream>
#include <optional>

#include <unistd.h>

#include "tessera/base/aside.h"
#include "tessera/base/text.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/core/stop.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How often the waiting thread looks whether the job is over.
constexpr std::chrono::milliseconds kGlance{50};
// How long a language front may look where its threads are: one of them may hold its lock for good.
constexpr std::chrono::milliseconds kLook{1000};

// Of another thread, which goes on: the pointer is read as a whole.
std::string last_op_of(const RankContext& context) {
  const char* op = __atomic_load_n(&context.current_op, __ATOMIC_RELAXED);
  return *op ? c10::str(", the last operator is ", op) : "";
}

}  // namespace

void RankThreads::begin(const RankContext& context) {
  const std::lock_guard lock(mutex_);
  running_[context.rank] = &context;
}

void RankThreads::end(int64_t rank) {
  const std::lock_guard lock(mutex_);
  running_.erase(rank);
  ++ended_;
  changed_.notify_all();
}

void RankThreads::wait(int64_t count) {
  std::unique_lock lock(mutex_);
  std::optional<Clock::time_point> over_at;
  while (!changed_.wait_for(lock, kGlance, [&] { return ended_ == count; })) {
    if (!over_at && is_over()) {
      over_at = Clock::now();
    }
    if (over_at && grace_.count() > 0 && Clock::now() - *over_at >= grace_) {
      end_process();
    }
  }
}

bool RankThreads::is_over() const { return stop_requests() != job_->stops_before() || job_->failure(); }

// Wants the mutex, so that no rank ends meanwhile.
void RankThreads::end_process() const {
  const bool is_stop = stop_requests() != job_->stops_before();
  const auto failure = job_->failure();
  const auto reason =
      is_stop ? std::string("stopped by a signal") : c10::str("rank ", failure->rank, " failed: ", failure->message);
  std::cerr << c10::str("tessera: ", reason,
                        "\ntessera: ", base::human_duration(static_cast<double>(grace_.count()) / 1000), " later ",
                        where_they_are(), " has not come back; a thread cannot be ended alone: this ends the process\n")
            << std::flush;
  leave_all_flights(reason);
  ::_exit(is_stop ? 130 : 1);
}

std::string RankThreads::where_they_are() const {
  std::string told;
  if (where_) {
    const auto text = std::make_shared<std::string>();  // of a look that may not end
    if (base::run_aside([where = where_, text] { *text = where(); }, kLook)) {
      told = *text;
    }
  }
  return !told.empty() ? told : base::join(running_, ", ", [&](std::ostream& out, const auto& each) {
    out << "rank " << each.first << " (" << job_->where(each.first) << last_op_of(*each.second) << ")";
  });
}

}  // namespace tessera::comm
