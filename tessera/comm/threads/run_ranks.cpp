#include "tessera/comm/threads/run_ranks.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include "tessera/base/error.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/machine.h"
#include "tessera/comm/core/rank_hooks.h"
#include "tessera/comm/fake/fake.h"
#include "tessera/comm/threads/rank_threads.h"
#include "tessera/comm/threads/threads.h"

namespace tessera::comm {
namespace {

bool is_echo(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const base::RankFailed&) {
    return true;
  } catch (...) {
    return false;
  }
}

// What the ranks of one job threw, in time.
class Errors {
 public:
  void add(int64_t rank, std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    list_.emplace_back(rank, std::move(error));
  }

  // Throws the error that `first` describes, or else the first that is no echo of another rank's, or else the first.
  void throw_first(const std::optional<Failure>& first) const {
    if (list_.empty()) {
      return;
    }
    const auto* chosen = &list_.front();
    for (const auto& entry : list_) {
      if (is_echo(entry.second)) {
        continue;
      }
      if (is_echo(chosen->second) || (first && entry.first == first->rank)) {
        chosen = &entry;
      }
    }
    rethrow_of(chosen->first, chosen->second);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int64_t, std::exception_ptr>> list_;
};

void run_rank(const std::shared_ptr<ThreadJob>& job, RankContext& context, const std::function<void(int64_t)>& body,
              Errors& errors) {
  ContextGuard guard(&context);
  try {
    context.world = join_threads(job, context.rank);
    const RankScope scope;
    body(context.rank);
    run_end_of_rank();
    job->finish(context.rank);
  } catch (...) {
    const auto error = std::current_exception();
    job->fail(context.rank, base::message_of(error));
    leave_flights(context, base::message_of(error));
    errors.add(context.rank, error);
  }
}

}  // namespace

void run_ranks(int64_t asked, const std::function<void(int64_t rank)>& body, RunOptions options) {
  const int64_t ranks = ranks_for(asked);
  TESSERA_CHECK(ranks >= 1 && ranks <= kMostRanks, "[run_ranks] ", ranks,
                " ranks as threads of one process; accepted: 1 to ", kMostRanks);
  TESSERA_CHECK(!RankContext::current(), "[run_ranks] called by rank ", RankContext::current()->rank, " of ",
                RankContext::current()->world_size, "; a rank cannot start ranks");
  const auto job = std::make_shared<ThreadJob>(ranks);
  const auto stops_before = job->stops_before();
  const auto threads = options.intra_op_threads > 0 ? options.intra_op_threads : threads_per_rank(ranks);
  const auto threads_before = at::get_num_threads();
  const at::ThreadLocalState caller;
  RankThreads running(job, options.grace, options.where);
  Errors errors;

  const auto start = [&](int64_t rank) {
    const at::ThreadLocalStateGuard as_caller(caller);
    set_intra_op_threads(threads);
    RankContext context;
    context.rank = rank;
    context.world_size = ranks;
    context.deadline = options.deadline;
    context.compare_programs = options.compare_programs;
    context.stops_before = stops_before;
    set_ranks_on_machine(context, ranks);
    running.begin(context);
    run_rank(job, context, body, errors);
    running.end(rank);
  };
  std::vector<std::thread> pool;
  try {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      pool.emplace_back(start, rank);
    }
  } catch (...) {
    const auto rank = static_cast<int64_t>(pool.size());
    job->fail(rank, c10::str("[run_ranks] no thread could be started for rank ", rank, " of ", ranks));
    errors.add(rank, std::current_exception());
  }
  running.wait(static_cast<int64_t>(pool.size()));
  for (auto& thread : pool) {
    thread.join();
  }
  at::set_num_threads(threads_before);
  errors.throw_first(job->failure());
}

void run_fake(int64_t ranks, int64_t rank, const std::function<void()>& body) {
  TESSERA_CHECK(!RankContext::current(), "[run_fake] called by rank ", RankContext::current()->rank, " of ",
                RankContext::current()->world_size, "; a rank cannot start ranks");
  RankContext context;
  context.rank = rank;
  context.world_size = ranks;
  context.world = make_fake_world(ranks, rank);
  context.stops_before = stop_requests();
  ContextGuard guard(&context);
  const RankScope scope;
  body();
}

int threads_per_rank(int64_t ranks) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return std::min(static_cast<int>(std::max<int64_t>(1, cores / ranks)), most_intra_op_threads());
}

}  // namespace tessera::comm
