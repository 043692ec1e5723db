#include "tessera/comm/processes/process_job.h"

#include <iostream>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/call/divergence.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/processes/gather.h"
#include "tessera/comm/processes/packing.h"
#include "tessera/comm/processes/remote_call.h"
#include "tessera/comm/threads/run_ranks.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

// When a wait asks the others where they are: first, and at the latest after it has asked.
constexpr milliseconds kFirstQuestion{200}, kLongestPause{2000};
// How long after a failure a rank may compute on before it is ended.
constexpr milliseconds kEndsAfter{1700};
// What one transfer may take at most: the wait's own deadline comes first.
constexpr milliseconds kTransfer = std::chrono::hours(24 * 365);

enum class Message : uint64_t { kFailed, kGoodbye, kQuestion, kAnswer };

std::string text_of(const JobFailure& failure) {
  return Packer()
      .number(static_cast<uint64_t>(Message::kFailed))
      .number(static_cast<uint64_t>(failure.kind))
      .number(static_cast<uint64_t>(failure.rank))
      .text(failure.message)
      .number(failure.group)
      .take();
}

// Of a message, by its global rank.
int64_t receiver_of(const Call& send) { return send.group->ranks()[static_cast<size_t>(send.peer)]; }

}  // namespace

ProcessJob::ProcessJob(const StorePtr& store, int64_t rank, int64_t size, const ProcessOptions& options,
                       uint64_t stops_before)
    : rank_(rank), size_(size), options_(options), stops_before_(stops_before), gone_(static_cast<size_t>(size)) {
  std::lock_guard lock(mutex_);  // holds the thread of the links back until they are ours
  ProcessLinks::Listener& listener = *this;
  links_ = std::make_unique<ProcessLinks>(store, rank, size, options.deadline, listener,
                                          [this] { throw_if_stopped_since(stops_before_); });
}

ProcessJob::~ProcessJob() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    for (const auto& kept : outbox_) {
      kept.work->abort();
    }
  }
  changed_.notify_all();
  if (draining_.joinable()) {
    draining_.join();
  }
  links_->stop();
  if (failure_) {  // others may see this rank's end before they hear from the one that failed
    links_->send_to_all(text_of(*failure_));
  }
}

void ProcessJob::run(const Round& round, const std::function<void(Works&)>& start) {
  throw_if_failed(&round.call, round.group);
  {
    std::lock_guard lock(mutex_);
    waiting_.round = &round;
    ++waiting_.id;
    waiting_.begin = Clock::now();
    waiting_.next_question = waiting_.begin + kFirstQuestion;
    waiting_.pause = kFirstQuestion;
    if (!is_message(round.call.kind)) {
      begun_[round.group] = round.number + 1;
    }
  }
  Works works;
  std::string broken;
  try {
    start(works);
    {
      std::lock_guard lock(mutex_);
      waiting_.works = works;
    }
    for (size_t i = 0; i < works.size() && !failed_; ++i) {
      works[i]->wait(kTransfer);
    }
  } catch (const std::exception& error) {
    broken = base::message_of(error);
  }
  end_wait();
  if (!broken.empty() && !failed_) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kReasonComes, [&] { return failed_.load(); });
    lock.unlock();
    set_failure({JobFailure::Kind::kThrew, rank_, "the connection of a transfer broke: " + broken});
  }
  if (failed_) {
    for (const auto& work : works) {
      work->abort();
    }
    throw_failure(&round.call, round.group);
  }
}

void ProcessJob::end_wait() {
  std::lock_guard lock(mutex_);
  waiting_.round = nullptr;
  waiting_.works.clear();
  waiting_.answers.clear();
  waiting_.is_warned = false;
}

void ProcessJob::note_sent(const Round& round) {
  std::lock_guard lock(mutex_);
  sent_[{round.group, receiver_of(round.call), round.call.tag}] = round.number + 1;
}

void ProcessJob::keep(const Round& round, at::Tensor tensor, c10::intrusive_ptr<c10d::Work> work) {
  note_sent(round);
  const auto& call = round.call;
  {
    std::lock_guard lock(mutex_);
    outbox_.push_back({round.group, receiver_of(call), call.tag, round.number, std::move(tensor), std::move(work)});
  }
  changed_.notify_all();
  if (!draining_.joinable()) {
    draining_ = std::thread([this] { drain(); });
  }
}

void ProcessJob::drain() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || failed_ || !outbox_.empty(); });
    if (ends_ || failed_) {
      return;
    }
    const auto work = outbox_.front().work;
    lock.unlock();
    try {
      work->wait(kTransfer);
    } catch (const std::exception&) {
      // The receiver's end, or its failure, is told by its link.
    }
    lock.lock();
    outbox_.erase(outbox_.begin());
    changed_.notify_all();
  }
}

void ProcessJob::throw_if_failed(const Call* call, uint64_t group) {
  if (!failed_ && stop_requests() != stops_before_) {
    set_failure({JobFailure::Kind::kStopped, rank_, "stopped by a signal"});
  }
  if (failed_) {
    throw_failure(call, group);
  }
}

void ProcessJob::throw_failure(const Call* call, uint64_t group) {
  std::unique_lock lock(mutex_);
  is_told_ = true;
  const auto failure = *failure_;
  const auto here = call ? "in " + call->str() : std::string(is_finished_ ? "at its end" : "joining the job");
  lock.unlock();
  if (failure.kind == JobFailure::Kind::kStopped) {
    TESSERA_THROW(Stopped, failure.message);
  }
  if (failure.kind == JobFailure::Kind::kDiverged && call && failure.group == group) {
    TESSERA_THROW(DivergenceError, failure.message);
  }
  if (failure.kind == JobFailure::Kind::kTimeout && failure.rank == rank_) {
    TESSERA_THROW(base::CommTimeout, failure.message);
  }
  if (failure.kind == JobFailure::Kind::kThrew && failure.rank == rank_) {
    TESSERA_THROW(base::CommError, failure.message);
  }
  throw base::RankFailed(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, failure.rank,
      c10::str("[comm] rank ", rank_, " was ", here, " when rank ", failure.rank, " failed: ", failure.message));
}

void ProcessJob::fail(const std::string& message) {
  const bool is_stop = stop_requests() != stops_before_;
  set_failure({is_stop ? JobFailure::Kind::kStopped : JobFailure::Kind::kThrew, rank_,
               is_stop ? "stopped by a signal" : message});
  std::lock_guard lock(mutex_);
  is_told_ = true;
}

void ProcessJob::diverge(const std::string& message, uint64_t group) {
  set_failure({JobFailure::Kind::kDiverged, rank_, message, group});
}

void ProcessJob::finish() {
  {
    std::lock_guard lock(mutex_);
    is_finished_ = true;
    gone_[static_cast<size_t>(rank_)] = true;
  }
  links_->send_to_all(Packer().number(static_cast<uint64_t>(Message::kGoodbye)).take());
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_ || std::find(gone_.begin(), gone_.end(), false) == gone_.end(); });
  }
  if (failed_) {
    throw_failure(nullptr, 0);
  }
}

std::optional<JobFailure> ProcessJob::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

// The first failure counts; it ends the wait that the rank is in.
void ProcessJob::set_failure(JobFailure failure, bool tell) {
  std::string message;
  {
    std::lock_guard lock(mutex_);
    if (failed_) {
      return;
    }
    failure_ = std::move(failure);
    failed_at_ = Clock::now();
    failed_ = true;
    for (const auto& work : waiting_.works) {
      work->abort();
    }
    for (const auto& kept : outbox_) {
      kept.work->abort();
    }
    message = text_of(*failure_);
  }
  changed_.notify_all();
  if (tell) {
    links_->send_to_all(message);
  }
}

void ProcessJob::on_message(int64_t from, const std::string& message) {
  try {
    take(from, message);
  } catch (const std::exception& error) {
    set_failure({JobFailure::Kind::kThrew, rank_,
                 c10::str("a message of rank ", from, " could not be read: ", base::message_of(error))});
  }
}

void ProcessJob::take(int64_t from, const std::string& message) {
  Unpacker reader(message);
  switch (static_cast<Message>(reader.number())) {
    case Message::kFailed: {
      const auto kind = static_cast<JobFailure::Kind>(reader.number());
      const auto rank = static_cast<int64_t>(reader.number());
      const auto text = reader.text();
      return set_failure({kind, rank, text, reader.number()}, false);
    }
    case Message::kGoodbye: {
      std::lock_guard lock(mutex_);
      gone_[static_cast<size_t>(from)] = true;
      waiting_.next_question = Clock::now();
      changed_.notify_all();
      return;
    }
    case Message::kQuestion: return answer(from, message);
    case Message::kAnswer: return judge(from, message);
  }
}

void ProcessJob::on_lost(int64_t rank) {
  {
    std::lock_guard lock(mutex_);
    if (gone_[static_cast<size_t>(rank)]) {
      return;
    }
  }
  set_failure({JobFailure::Kind::kLost, rank, describe_lost(links_->process_of(rank))});
}

void ProcessJob::on_tick() {
  const auto now = Clock::now();
  if (!failed_ && stop_requests() != stops_before_) {
    set_failure({JobFailure::Kind::kStopped, rank_, "stopped by a signal"});
  }
  if (failed_) {
    end_process_if_stuck(now);
  } else {
    watch_wait(now);
  }
}

void ProcessJob::watch_wait(Clock::time_point now) {
  std::unique_lock lock(mutex_);
  if (!waiting_.round) {
    return;
  }
  const auto waited = std::chrono::duration_cast<milliseconds>(now - waiting_.begin);
  if (waited >= options_.deadline) {
    const std::string advice = advice_for(waiting_.round->call);
    const auto message = c10::str(
        "[comm] rank ", rank_, " waited ", options_.deadline.count(), " ms in ", waiting_.round->call.str(), " for ",
        missing(), "; look for a lock or a wait that depends on the rank there, or give slow ranks a longer deadline",
        advice.empty() ? "" : "." + advice);
    lock.unlock();
    return set_failure({JobFailure::Kind::kTimeout, rank_, message});
  }
  if (waited >= options_.warn_after && !waiting_.is_warned) {
    waiting_.is_warned = true;
    std::cerr << c10::str("tessera: rank ", rank_, " has waited ", waited.count() / 1000.0, " s in ",
                          waiting_.round->call.str(), " for ", missing(), "\n")
              << std::flush;
  }
  if (now >= waiting_.next_question) {
    waiting_.next_question = now + waiting_.pause;
    waiting_.pause = std::min(2 * waiting_.pause, kLongestPause);
    ask();
  }
}

// Asks the other members of the group (of a message: its other end) where they are. Wants the mutex.
void ProcessJob::ask() {
  const auto& [call, group, number] = *waiting_.round;
  if (call.kind == Kind::kSend) {
    return;  // it waits for nobody: the answer would be about what comes the other way
  }
  Packer packer;
  packer.number(static_cast<uint64_t>(Message::kQuestion))
      .number(waiting_.id)
      .number(group)
      .number(static_cast<uint64_t>(number));
  packer.number(is_message(call.kind)).number(static_cast<uint64_t>(call.tag));
  const std::string question = packer.take();
  for (int64_t member = 0; member < call.group->size(); ++member) {
    if (member != call.group->rank() && (!is_message(call.kind) || member == call.peer)) {
      links_->send(call.group->ranks()[static_cast<size_t>(member)], question);
    }
  }
}

void ProcessJob::answer(int64_t from, const std::string& question) {
  Unpacker reader(question);
  reader.number();
  const auto id = reader.number(), group = reader.number();
  const auto number = static_cast<int64_t>(reader.number());
  const bool of_message = reader.number();
  const auto tag = static_cast<int64_t>(reader.number());
  Packer reply;
  {
    std::lock_guard lock(mutex_);
    reply.number(static_cast<uint64_t>(Message::kAnswer)).number(id).number(is_finished_).text(where());
    reply.number(static_cast<uint64_t>(of_message ? sent_[{group, from, tag}] : begun_[group]));
    const auto kept = std::find_if(outbox_.begin(), outbox_.end(), [&](const Kept& each) {
      return of_message && each.group == group && each.to == from && each.tag == tag && each.number == number;
    });
    const auto* round = waiting_.round;
    const bool is_same =
        round && !of_message && !is_message(round->call.kind) && round->group == group && round->number == number;
    reply.number(kept != outbox_.end() ? 2 : is_same ? 1 : 0);
    if (kept != outbox_.end()) {
      pack_shape(reply, kept->tensor);
    } else if (is_same) {
      pack_call(reply, round->call);
    }
  }
  links_->send(from, reply.take());
}

// Whether what a member answers can ever meet what this rank waits for.
void ProcessJob::judge(int64_t from, const std::string& message) {
  std::unique_lock lock(mutex_);
  Unpacker reader(message);
  reader.number();
  if (reader.number() != waiting_.id || !waiting_.round || failed_) {
    return;
  }
  const auto& [call, group, number] = *waiting_.round;
  Answer answer{static_cast<bool>(reader.number()), 0, reader.text()};
  answer.number = static_cast<int64_t>(reader.number());
  const auto& ranks = call.group->ranks();
  waiting_.answers[std::find(ranks.begin(), ranks.end(), from) - ranks.begin()] = answer;

  std::string text;
  const auto what = reader.number();
  if (what == 2) {
    text = divergence_of(call, unpack_shape(reader));
  } else if (what == 1) {
    text = divergence_from(call, RemoteCall(reader, *call.group, from));
  } else if (answer.is_finished && answer.number <= number) {
    text = divergence_by_end(from, rank_, call);
  }
  lock.unlock();
  if (!text.empty()) {
    set_failure({JobFailure::Kind::kDiverged, rank_, text, group});
  }
}

// A rank that is in no collective would not hear of a failure.
void ProcessJob::end_process_if_stuck(Clock::time_point now) {
  std::unique_lock lock(mutex_);
  if (!options_.ends_process || is_told_ || now - failed_at_ < kEndsAfter) {
    return;
  }
  const bool is_stop = failure_->kind == JobFailure::Kind::kStopped;
  const auto message =
      c10::str("rank ", rank_, " was ", where(), " when rank ", failure_->rank, " failed: ", failure_->message);
  std::cerr << c10::str("tessera: ", message, "\n") << std::flush;
  leave_all_flights(message);
  ::_exit(is_stop ? 130 : 1);
}

// `rank 2 (in no collective), rank 3 (finished)`: the members that have not come, as far as they said. Wants the mutex.
std::string ProcessJob::missing() const {
  const auto& [call, group, number] = *waiting_.round;
  std::vector<std::string> all, late;
  for (int64_t member = 0; member < call.group->size(); ++member) {
    if (member == call.group->rank() || (is_message(call.kind) && member != call.peer)) {
      continue;
    }
    const auto said = waiting_.answers.find(member);
    const bool is_silent = said == waiting_.answers.end();
    const auto text = c10::str("rank ", call.group->ranks()[static_cast<size_t>(member)], " (",
                               is_silent ? "no answer" : said->second.where, ")");
    all.push_back(text);
    if (is_silent || said->second.number <= number) {
      late.push_back(text);
    }
  }
  return base::join(late.empty() ? all : late, ", ");
}

std::string ProcessJob::where() const {
  return is_finished_ ? "finished" : waiting_.round ? "in " + waiting_.round->call.str() : "in no collective";
}

}  // namespace tessera::comm
