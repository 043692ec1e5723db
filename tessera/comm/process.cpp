#include "tessera/comm/process.h"

#include <csignal>
#include <future>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/c10d.h"
#include "tessera/comm/context.h"
#include "tessera/comm/errors.h"
#include "tessera/comm/flight.h"
#include "tessera/comm/rank_scope.h"
#include "tessera/comm/run_ranks.h"

namespace tessera::comm {
namespace {

// What `make` returns, made on another thread, which is left to itself when `check`, called every few milliseconds, throws:
// libraries wait for peers in ways that nothing can end.
template <typename Make, typename Check>
auto make_aside(Make make, Check check) {
  using Result = decltype(make());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(make));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  while (result.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    check();
  }
  return result.get();
}

StorePtr make_store(const Place& place, const ProcessOptions& options, uint64_t stops_before) {
  const bool serves = place.rank == 0 && !place.store_is_served;
  c10d::TCPStoreOptions store{
      .port = static_cast<std::uint16_t>(place.port),
      .isServer = serves,
      .waitWorkers = false,
      .timeout = options.deadline,
  };
  if (serves && place.store_socket >= 0) {
    store.masterListenFd = place.store_socket;
  }
  StorePtr tcp;
  try {
    tcp = make_aside([host = place.host, store]() -> StorePtr { return c10::make_intrusive<c10d::TCPStore>(host, store); },
                     [&] { throw_if_stopped_since(stops_before); });
  } catch (const Stopped&) {
    throw;
  } catch (const std::exception& error) {
    TESSERA_THROW(CommError, "[comm] rank ", place.rank, " of ", place.size, serves ? " cannot serve the job's store at " : " cannot reach the job's store at ",
                  place.host, ":", place.port, " (from ", place.launcher, "): ", base::message_of(error),
                  serves ? "; is the port taken?" : "; has rank 0 started, and may this machine connect to it?");
  }
  return c10::make_intrusive<c10d::PrefixStore>("tessera/" + place.attempt, tcp);
}

// The job's first error is that of its store when the process that serves it dies early.
std::shared_ptr<ProcessJob> join_job(const Place& place, const StorePtr& store, const ProcessOptions& options, uint64_t stops_before) {
  try {
    return std::make_shared<ProcessJob>(store, place.rank, place.size, options, stops_before);
  } catch (const base::CommError&) {
    throw;
  } catch (const c10::DistError& error) {
    TESSERA_THROW(CommError, "[comm] rank ", place.rank, " of ", place.size, " lost the job's store at ", place.host, ":", place.port,
                  " while the ranks gathered: the process that serves it is gone (", base::message_of(error), ")");
  }
}

void run_body(const Place& place, const std::shared_ptr<ProcessJob>& job, const StorePtr& store, const ProcessOptions& options,
              uint64_t stops_before, const std::function<void(int64_t)>& body) {
  RankContext context;
  context.rank = place.rank;
  context.world_size = place.size;
  context.deadline = options.deadline;
  context.compare_programs = options.compare_programs;
  context.stops_before = stops_before;
  const auto end = std::chrono::steady_clock::now() + options.deadline;
  const auto gloo = make_aside([store, job] { return make_gloo(store, *job); }, [&] {
    job->throw_if_failed(nullptr, 0);
    TESSERA_CHECK_AS(CommTimeout, std::chrono::steady_clock::now() < end, "[comm] rank ", place.rank, ": Gloo did not connect the ranks within ",
                     options.deadline.count(), " ms; is there TCP between all machines? GLOO_SOCKET_IFNAME names the interface to use");
  });
  context.world = join_c10d(job, gloo);
  ContextGuard guard(&context);
  const RankScope scope;
  try {
    body(place.rank);
    job->finish();
  } catch (...) {
    const auto message = base::message_of(std::current_exception());
    job->fail(message);
    leave_flights(context, message);
    throw;
  }
}

}  // namespace

void run_process(const Place& place, const std::function<void(int64_t rank)>& body, const ProcessOptions& options) {
  TESSERA_CHECK(!RankContext::current(), "[run_process] called by a rank; a rank cannot start ranks");
  TESSERA_CHECK(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "[run_process] rank ", place.rank, " of ", place.size,
                "; accepted: ranks 0 to size - 1");
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to connections that may have broken
  const auto stops_before = stop_requests();
  const auto store = make_store(place, options, stops_before);
  const auto job = join_job(place, store, options, stops_before);
  const auto threads_before = at::get_num_threads();
  set_intra_op_threads(options.intra_op_threads > 0 ? options.intra_op_threads : threads_per_rank(place.local_size));
  try {
    run_body(place, job, store, options, stops_before, body);
  } catch (...) {
    const auto error = std::current_exception();
    job->fail(base::message_of(error));
    at::set_num_threads(threads_before);
    rethrow_of(place.rank, error);
  }
  at::set_num_threads(threads_before);
}

}  // namespace tessera::comm
