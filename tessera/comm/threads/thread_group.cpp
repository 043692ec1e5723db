#include "tessera/comm/threads/thread_group.h"

#include <thread>

#include <c10/util/ScopeExit.h>

#include "tessera/base/hints.h"
#include "tessera/base/text.h"
#include "tessera/comm/call/divergence.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/stop.h"
#include "tessera/comm/sums/transfer.h"
#include "tessera/comm/threads/shared_device.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

// A sleeper looks around at least this often: a signal handler cannot wake it.
constexpr std::chrono::milliseconds kPause{50};
// How long all ranks wait for each other before one says so.
constexpr std::chrono::milliseconds kDeadlock{200};
// How often a waiter lets other threads run before it sleeps.
constexpr int kYields = 64;
// Up to this many bytes in all, the last to arrive does the work of all: waking the others first would cost more.
constexpr int64_t kAloneBytes = 32 * 1024;

template <typename Done>
void yield_until(Done done) {
  for (int i = 0; i < kYields && !done(); ++i) {
    std::this_thread::yield();
  }
}

}  // namespace

ThreadJob::ThreadJob(int64_t ranks)
    : finished_(static_cast<size_t>(ranks)), waiting_(static_cast<size_t>(ranks)), stops_before_(stop_requests()) {}

void ThreadJob::fail(int64_t rank, std::string message) {
  std::lock_guard lock(mutex_);
  set_failure({rank, std::move(message)});
}

void ThreadJob::finish(int64_t rank) {
  std::lock_guard lock(mutex_);
  finished_[static_cast<size_t>(rank)] = true;
  ++idle_;
  for (auto* group : groups_) {
    group->changed_.notify_all();
  }
}

std::optional<Failure> ThreadJob::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::string ThreadJob::where(int64_t rank) {
  std::lock_guard lock(mutex_);
  return where_is(rank);
}

std::shared_ptr<ThreadGroup> ThreadJob::open(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank) {
  auto fresh = std::make_shared<ThreadGroup>(*this, ranks);  // its destructor wants the mutex: it outlives the lock
  std::lock_guard lock(mutex_);
  auto& family = families_[{name, ranks}];
  const auto number = family.joined_by[rank]++;
  auto& opening = family.openings[number];
  if (!opening.group) {
    opening.group = fresh;
  }
  auto group = opening.group;
  if (++opening.joined == ranks.size()) {
    family.openings.erase(number);
  }
  return group;
}

void ThreadJob::set_failure(Failure failure) {
  if (failure_) {
    return;
  }
  failure_ = std::move(failure);
  failed_ = true;
  for (auto* group : groups_) {
    group->changed_.notify_all();
  }
}

std::string ThreadJob::where_is(int64_t rank) const {
  if (finished_[static_cast<size_t>(rank)]) {
    return "finished";
  }
  for (const auto* group : groups_) {
    const auto at = std::find(group->ranks_.begin(), group->ranks_.end(), rank);
    if (at == group->ranks_.end()) {
      continue;
    }
    if (const auto* call = group->calls_[static_cast<size_t>(at - group->ranks_.begin())]) {
      return "in " + call->str();
    }
  }
  return "in no collective";
}

bool ThreadJob::is_deadlocked() const {
  return idle_ == size() && std::all_of(waiting_.begin(), waiting_.end(), [](const Waiter* waiter) {
           return !waiter || (waiter->may_leave() && !waiter->is_ready());
         });
}

ThreadGroup::ThreadGroup(ThreadJob& job, std::vector<int64_t> ranks)
    : job_(job), ranks_(std::move(ranks)), calls_(ranks_.size()) {
  std::lock_guard lock(job_.mutex_);
  job_.groups_.insert(this);
}

ThreadGroup::~ThreadGroup() {
  std::lock_guard lock(job_.mutex_);
  job_.groups_.erase(this);
}

void ThreadGroup::meet(size_t member, uint64_t round, const Call& call, std::chrono::milliseconds deadline) {
  Lock lock(job_.mutex_);
  throw_if_failed(call, member);
  calls_[member] = &call;
  if (++arrived_ == ranks_.size()) {
    running_ = true;
    lock.unlock();
    lead(member, round);
  } else {
    follow(lock, member, round, call, deadline);
  }
  if (job_.failed_) {
    lock = Lock(job_.mutex_);
    throw_failure(call, member);
  }
}

// The last to arrive. Everybody is held until it closes or opens the round, or fails the job.
void ThreadGroup::lead(size_t member, uint64_t round) {
  const auto stop = [&](std::string message, const ThreadGroup* diverged) {
    Lock lock(job_.mutex_);
    job_.set_failure({ranks_[member], std::move(message), diverged});
    running_ = false;
    changed_.notify_all();
  };
  try {
    if (auto message = divergence_of(calls_); !message.empty()) {
      return stop(std::move(message), this);
    }
    verify_one_device(calls_);
    if (is_small() || !device_of(*calls_[member]).is_cpu()) {
      run_alone(member);
      return close(round);
    }
  } catch (...) {
    stop(base::message_of(std::current_exception()), nullptr);
    throw;
  }
  {
    Lock lock(job_.mutex_);
    opened_ = round + 1;
  }
  changed_.notify_all();
  run_together(member, round);
}

void ThreadGroup::follow(Lock& lock, size_t member, uint64_t round, const Call& call,
                         std::chrono::milliseconds deadline) {
  const auto is_open = [&] { return opened_ > round || closed_ > round; };
  lock.unlock();
  yield_until([&] { return is_open() || job_.failed_; });
  if (!is_open()) {
    lock.lock();
    wait(lock, {call, member, deadline, is_open, [&] { return !running_; }, [&](size_t m) { return !calls_[m]; }});
    lock.unlock();
  }
  if (closed_ <= round) {
    run_together(member, round);
  }
}

// The member's part, and the wait for the others': short, and without a way out, because they use each other's tensors.
void ThreadGroup::run_together(size_t member, uint64_t round) {
  std::exception_ptr error;
  try {
    transfer(calls_, member);
  } catch (...) {
    error = std::current_exception();
    job_.fail(ranks_[member], base::message_of(error));
  }
  if (finished_.fetch_add(1) + 1 == ranks_.size()) {
    close(round);
  } else {
    const auto is_closed = [&] { return closed_ > round; };
    yield_until(is_closed);
    if (!is_closed()) {
      Lock lock(job_.mutex_);
      changed_.wait(lock, is_closed);
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void ThreadGroup::run_alone(size_t member) {
  for (size_t part = 0; part < calls_.size(); ++part) {
    transfer(calls_, part);
  }
  settle_stream(*calls_[member]);
}

void ThreadGroup::close(uint64_t round) {
  {
    Lock lock(job_.mutex_);
    std::fill(calls_.begin(), calls_.end(), nullptr);
    arrived_ = 0;
    finished_ = 0;
    running_ = false;
    closed_ = round + 1;
  }
  changed_.notify_all();
}

bool ThreadGroup::is_small() const {
  int64_t bytes = 0;
  for (const auto* call : calls_) {
    bytes += call->bytes();
  }
  return bytes <= kAloneBytes;
}

void ThreadGroup::post(const Call& call, size_t from, int64_t number, at::Tensor message) {
  const auto to = static_cast<size_t>(call.peer);
  Lock lock(job_.mutex_);
  throw_if_failed(call, from);
  if (job_.finished_[static_cast<size_t>(ranks_[to])]) {
    throw_finished({call, from, {}, {}, {}, {}}, to);
  }
  messages_.emplace(MessageKey(from, to, call.tag, number), std::move(message));
  changed_.notify_all();
}

at::Tensor ThreadGroup::take(const Call& call, size_t to, int64_t number, std::chrono::milliseconds deadline) {
  const MessageKey key(static_cast<size_t>(call.peer), to, call.tag, number);
  Lock lock(job_.mutex_);
  throw_if_failed(call, to);
  wait(lock, {call, to, deadline, [&] { return messages_.count(key) > 0; }, [] { return true; },
              [&](size_t member) { return member == static_cast<size_t>(call.peer); }});
  auto message = std::move(messages_.at(key));
  messages_.erase(key);
  if (auto text = divergence_of(call, message); !text.empty()) {
    job_.set_failure({ranks_[to], text});
    TESSERA_THROW(DivergenceError, text);
  }
  return message;
}

void ThreadGroup::wait(Lock& lock, const Waiter& waiter) {
  const auto end = Clock::now() + waiter.deadline;
  auto& here = job_.waiting_[static_cast<size_t>(ranks_[waiter.member])];
  here = &waiter;
  ++job_.idle_;
  const auto leave = c10::make_scope_exit([&] {
    here = nullptr;
    --job_.idle_;
  });
  constexpr auto kNever = Clock::time_point::max();
  auto stuck_since = kNever;
  for (; !waiter.is_ready(); changed_.wait_until(lock, std::min(end, Clock::now() + kPause))) {
    if (!waiter.may_leave()) {
      changed_.wait(lock, [&] { return waiter.is_ready() || waiter.may_leave(); });
      if (waiter.is_ready()) {
        return;
      }
    }
    throw_if_failed(waiter.call, waiter.member);
    if (stop_requests() != job_.stops_before_) {
      job_.set_failure({ranks_[waiter.member], "stopped by a signal"});
      TESSERA_THROW(Stopped, "stopped by a signal");
    }
    for (size_t member = 0; member < ranks_.size(); ++member) {
      if (waiter.is_missing(member) && job_.finished_[static_cast<size_t>(ranks_[member])]) {
        throw_finished(waiter, member);
      }
    }
    stuck_since = job_.is_deadlocked() ? std::min(stuck_since, Clock::now()) : kNever;
    if (stuck_since != kNever && Clock::now() - stuck_since >= kDeadlock) {
      throw_deadlock(waiter);
    }
    if (Clock::now() >= end) {
      throw_timeout(waiter);
    }
  }
}

void ThreadGroup::throw_if_failed(const Call& call, size_t member) {
  if (job_.failure_) {
    throw_failure(call, member);
  }
}

void ThreadGroup::throw_failure(const Call& call, size_t member) {
  const auto& failure = *job_.failure_;
  if (failure.diverged == this || failure.is_deadlock) {
    TESSERA_THROW(DivergenceError, failure.message);
  }
  throw base::RankFailed({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, failure.rank,
                         c10::str("[comm] rank ", ranks_[member], " was in ", call.str(), " when rank ", failure.rank,
                                  " failed: ", failure.message));
}

void ThreadGroup::throw_finished(const Waiter& waiter, size_t missing) {
  const auto message = divergence_by_end(ranks_[missing], ranks_[waiter.member], waiter.call);
  job_.set_failure({ranks_[waiter.member], message, this});
  TESSERA_THROW(DivergenceError, message);
}

void ThreadGroup::throw_deadlock(const Waiter& waiter) {
  size_t missing = 0;
  while (!waiter.is_missing(missing)) {
    ++missing;
  }
  const auto message = divergence_by_deadlock(waiter.call, job_.waiting_[static_cast<size_t>(ranks_[missing])]->call);
  job_.set_failure({.rank = ranks_[waiter.member], .message = message, .is_deadlock = true});
  TESSERA_THROW(DivergenceError, message);
}

void ThreadGroup::throw_timeout(const Waiter& waiter) {
  std::ostringstream out;
  out << "[comm] rank " << ranks_[waiter.member] << " waited " << waiter.deadline.count() << " ms in "
      << waiter.call.str() << " for";
  const char* separator = " ";
  for (size_t member = 0; member < ranks_.size(); ++member) {
    if (waiter.is_missing(member)) {
      out << separator << "rank " << ranks_[member] << " (" << job_.where_is(ranks_[member]) << ")";
      separator = ", ";
    }
  }
  out << "; look for a lock or a wait that depends on the rank there, or give slow ranks a longer "
      << base::in_language("RunOptions::deadline", "deadline: run_ranks(body, n, deadline=seconds)");
  if (const std::string advice = advice_for(waiter.call); !advice.empty()) {
    out << "." << advice;
  }
  job_.set_failure({ranks_[waiter.member], out.str()});
  TESSERA_THROW(base::CommTimeout, out.str());
}

}  // namespace tessera::comm
