#include "tessera/comm/run_ranks.h"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <thread>
#include <typeinfo>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>

#include "tessera/base/error.h"
#include "tessera/comm/errors.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/threads.h"

namespace tessera::comm {
namespace {

std::atomic<uint64_t> the_stop_requests{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct Hooks {
  std::mutex mutex;
  std::vector<std::function<std::shared_ptr<void>()>> list;
};

Hooks& hooks() {
  static Hooks hooks;
  return hooks;
}

// Calls the hooks; drops their guards last first.
class HookGuards {
 public:
  HookGuards() {
    std::vector<std::function<std::shared_ptr<void>()>> list;
    {
      std::lock_guard lock(hooks().mutex);
      list = hooks().list;
    }
    for (const auto& hook : list) {
      guards_.push_back(hook());
    }
  }
  ~HookGuards() {
    while (!guards_.empty()) {
      guards_.pop_back();
    }
  }
  HookGuards(const HookGuards&) = delete;
  HookGuards& operator=(const HookGuards&) = delete;

 private:
  std::vector<std::shared_ptr<void>> guards_;
};

// Keeps backward on the calling thread.
class SingleThreadedAutograd {
 public:
  SingleThreadedAutograd() : previous_(state().get_multithreading_enabled()) { state().set_multithreading_enabled(false); }
  ~SingleThreadedAutograd() { state().set_multithreading_enabled(previous_); }
  SingleThreadedAutograd(const SingleThreadedAutograd&) = delete;
  SingleThreadedAutograd& operator=(const SingleThreadedAutograd&) = delete;

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  bool previous_;
};

// The count is per thread, but each setter also leaves it as the default of threads that have not asked yet: asking first
// settles that.
void set_intra_op_threads(int count) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
}

// Throws `error` anew with `prefix` before its message if it is exactly a T.
template <typename T>
void throw_if_exactly(const std::exception& error, const std::string& prefix) {
  if (typeid(error) != typeid(T)) {
    return;
  }
  const auto message = prefix + base::message_of(error);
  if constexpr (std::is_base_of_v<c10::Error, T>) {
    throw T({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  } else {
    throw T(message);
  }
}

template <typename... Types>
void throw_if_one_of(const std::exception& error, const std::string& prefix) {
  (throw_if_exactly<Types>(error, prefix), ...);
}

[[noreturn]] void rethrow_of(int64_t rank, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const base::RankFailed& echo) {
    throw;
  } catch (const std::exception& caught) {
    throw_if_one_of<c10::Error, c10::ValueError, c10::IndexError, c10::TypeError, c10::NotImplementedError,
                    c10::LinAlgError, c10::OutOfMemoryError, c10::DistBackendError, base::CommError, base::CommTimeout,
                    DivergenceError, base::DataError, base::ConfigError, base::PlanError, std::runtime_error,
                    std::logic_error, std::invalid_argument, std::out_of_range>(caught, c10::str("rank ", rank, ": "));
    throw;
  }
}

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
  SingleThreadedAutograd on_this_thread;
  try {
    context.world = join_threads(job, context.rank);
    HookGuards guards;
    body(context.rank);
    job->finish(context.rank);
  } catch (...) {
    const auto error = std::current_exception();
    job->fail(context.rank, base::message_of(error));
    errors.add(context.rank, error);
  }
}

}  // namespace

void run_ranks(int64_t ranks, const std::function<void(int64_t rank)>& body, RunOptions options) {
  TESSERA_CHECK(ranks >= 1 && ranks <= kMostRanks, "[run_ranks] ", ranks, " ranks as threads of one process; accepted: 1 to ", kMostRanks);
  TESSERA_CHECK(!RankContext::current(), "[run_ranks] called by rank ", RankContext::current()->rank, " of ",
                RankContext::current()->world_size, "; a rank cannot start ranks");
  const auto job = std::make_shared<ThreadJob>(ranks);
  const auto stops_before = job->stops_before();
  const auto threads = options.intra_op_threads > 0 ? options.intra_op_threads : threads_per_rank(ranks);
  const auto threads_before = at::get_num_threads();
  const at::ThreadLocalState caller;
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
    run_rank(job, context, body, errors);
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
  SingleThreadedAutograd on_this_thread;
  HookGuards guards;
  body();
}

void add_rank_hook(std::function<std::shared_ptr<void>()> hook) {
  std::lock_guard lock(hooks().mutex);
  hooks().list.push_back(std::move(hook));
}

int threads_per_rank(int64_t ranks) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return static_cast<int>(std::max<int64_t>(1, cores / ranks));
}

void request_stop() { the_stop_requests.fetch_add(1); }

uint64_t stop_requests() { return the_stop_requests.load(); }

void throw_if_stopped() {
  const auto* context = RankContext::current();
  if (context && stop_requests() != context->stops_before) {
    TESSERA_THROW(Stopped, "stopped by a signal");
  }
}

}  // namespace tessera::comm
