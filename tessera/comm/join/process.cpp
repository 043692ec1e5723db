#include "tessera/comm/join/process.h"

#include <csignal>
#include <future>
#include <iostream>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/machine.h"
#include "tessera/comm/core/rank_hooks.h"
#include "tessera/comm/core/wait_hook.h"
#include "tessera/comm/devices/c10d_device.h"
#include "tessera/comm/processes/c10d.h"
#include "tessera/comm/threads/run_ranks.h"

namespace tessera::comm {
namespace {

// What `make` returns, made on another thread, which is left to itself when `check`, called every few milliseconds,
// throws: libraries wait for peers in ways that nothing can end.
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
  const c10d::TCPStoreOptions store{
      .port = static_cast<std::uint16_t>(place.port),
      .isServer = serves,
      .waitWorkers = false,
      .timeout = options.deadline,
  };
  StorePtr tcp;
  try {
    tcp = make_aside(
        [host = place.host, store]() -> StorePtr { return c10::make_intrusive<c10d::TCPStore>(host, store); },
        [&] { throw_if_stopped_since(stops_before); });
  } catch (const Stopped&) {
    throw;
  } catch (const std::exception& error) {
    TESSERA_THROW(CommError, "[comm] rank ", place.rank, " of ", place.size,
                  serves ? " cannot serve the job's store at " : " cannot reach the job's store at ", place.host, ":",
                  place.port, " (from ", place.launcher, "): ", base::message_of(error),
                  serves ? "; is the port taken?" : "; has rank 0 started, and may this machine connect to it?");
  }
  return c10::make_intrusive<c10d::PrefixStore>("tessera/" + place.attempt, tcp);
}

// The job's first error is that of its store when the process that serves it dies early.
std::shared_ptr<ProcessJob> join_job(const HandedGroup& group, const std::string& where, const ProcessOptions& options,
                                     uint64_t stops_before) {
  try {
    return std::make_shared<ProcessJob>(group.store, group.rank, group.size, options, stops_before);
  } catch (const base::CommError&) {
    throw;
  } catch (const c10::DistError& error) {
    TESSERA_THROW(CommError, "[comm] rank ", group.rank, " of ", group.size, " lost the job's store", where,
                  " while the ranks gathered: the process that ", "serves it is gone (", base::message_of(error), ")");
  }
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const StorePtr& store, const std::shared_ptr<ProcessJob>& job,
                                               const ProcessOptions& options) {
  const auto end = std::chrono::steady_clock::now() + options.deadline;
  return make_aside([store, job] { return make_gloo(store, *job); },
                    [&] {
                      job->throw_if_failed(nullptr, 0);
                      TESSERA_CHECK_AS(
                          CommTimeout, std::chrono::steady_clock::now() < end, "[comm] rank ", job->rank(),
                          ": Gloo did not connect the ranks within ", options.deadline.count(),
                          " ms; is there TCP between all machines? GLOO_SOCKET_IFNAME names the interface to use");
                    });
}

std::shared_ptr<Communicator> join_world(const HandedGroup& group, const std::shared_ptr<ProcessJob>& job,
                                         const ProcessOptions& options) {
  auto world = join_c10d(job, group.cpu ? group.cpu : connect_gloo(group.store, job, options));
  auto devices = group.devices;
  if (!devices && (devices = make_nccl(group.store))) {
    devices->world = group.cuda;
  }
  return devices ? join_devices(job, std::move(world), std::move(*devices)) : world;
}

// The intra-op threads of the calling thread, set for a scope; 0: they stay as they are.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int count) : before_(at::get_num_threads()) {
    set_intra_op_threads(count > 0 ? count : before_);
  }
  ~IntraOpThreads() { set_intra_op_threads(before_); }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int before_;
};

}  // namespace

// In the order of its making.
class JoinedProcess::Rank {
 public:
  Rank(const HandedGroup& group, const std::string& where, const ProcessOptions& options, uint64_t stops_before)
      : job(join_job(group, where, options, stops_before)),
        threads_(options.intra_op_threads > 0 ? options.intra_op_threads
                 : group.local_size > 0       ? threads_per_rank(group.local_size)
                                              : 0) {
    try {
      context.rank = group.rank;
      context.world_size = group.size;
      context.deadline = options.deadline;
      context.compare_programs = options.compare_programs;
      context.stops_before = stops_before;
      set_ranks_on_machine(context, std::max<int64_t>(group.local_size, 1));
      context.world = join_world(group, job, options);
      guard_.emplace(&context);
      scope_.emplace();
    } catch (...) {
      job->fail(base::message_of(std::current_exception()));
      throw;
    }
  }

  const std::shared_ptr<ProcessJob> job;
  RankContext context;

 private:
  const IntraOpThreads threads_;
  std::optional<ContextGuard> guard_;
  std::optional<RankScope> scope_;
};

JoinedProcess::JoinedProcess(std::unique_ptr<Rank> rank) : rank_(std::move(rank)) {}

JoinedProcess::JoinedProcess(JoinedProcess&&) noexcept = default;

JoinedProcess::~JoinedProcess() {
  if (!rank_) {
    return;
  }
  try {
    std::uncaught_exceptions() > 0 ? fail("it ended by an exception") : leave();
  } catch (const std::exception& error) {
    std::cerr << c10::str("tessera: ", base::message_of(error), "\n") << std::flush;
  }
}

RankContext& JoinedProcess::context() const { return rank_->context; }

void JoinedProcess::leave() {
  TESSERA_CHECK(rank_, "[comm] this process has left its job already");
  try {
    run_end_of_rank();
    const WaitScope scope;
    rank_->job->finish();
  } catch (...) {
    fail(base::message_of(std::current_exception()));
    throw;
  }
  rank_.reset();
}

void JoinedProcess::fail(const std::string& message) noexcept {
  if (!rank_) {
    return;
  }
  rank_->job->fail(message);
  leave_flights(rank_->context, message);
  rank_.reset();
}

namespace {

void verify_rank(int64_t rank, int64_t size) {
  TESSERA_CHECK(!RankContext::current(),
                "[comm] a process cannot join a job from inside of a rank; leave the other first");
  TESSERA_CHECK(size >= 1 && rank >= 0 && rank < size, "[comm] rank ", rank, " of ", size,
                "; accepted: ranks 0 to size - 1");
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to connections that may have broken
}

}  // namespace

HandedGroup hand_in(const c10::intrusive_ptr<c10d::ProcessGroup>& group, StorePtr store) {
  HandedGroup handed{.store = std::move(store), .rank = group->getRank(), .size = group->getSize()};
  for (const c10::Device device : group->getDeviceTypes()) {
    const auto backend = group->getBackend(device.type());
    if (device.is_cpu()) {
      handed.cpu = backend;
    }
    // Torch registers Gloo for CUDA tensors too, which it copies to the CPU and back.
    if (device.is_cuda() && backend->getBackendName() == "nccl") {
      handed.cuda = backend;
    }
  }
  return handed;
}

JoinedProcess join_process(const HandedGroup& group, const ProcessOptions& options) {
  verify_rank(group.rank, group.size);
  auto own = group;
  own.store = c10::make_intrusive<c10d::PrefixStore>("tessera/" + group.name, group.store);
  return JoinedProcess(std::make_unique<JoinedProcess::Rank>(own, "", options, stop_requests()));
}

JoinedProcess join_process(const Place& place, const ProcessOptions& options) {
  verify_rank(place.rank, place.size);
  const auto stops_before = stop_requests();
  const HandedGroup group{.store = make_store(place, options, stops_before),
                          .rank = place.rank,
                          .size = place.size,
                          .local_size = place.local_size};
  return JoinedProcess(std::make_unique<JoinedProcess::Rank>(group, c10::str(" at ", place.host, ":", place.port),
                                                             options, stops_before));
}

void run_process(const Place& place, const std::function<void(int64_t rank)>& body, const ProcessOptions& options) {
  auto rank = join_process(place, options);
  try {
    body(place.rank);
    rank.leave();
  } catch (...) {
    const auto error = std::current_exception();
    rank.fail(base::message_of(error));
    rethrow_of(place.rank, error);
  }
}

}  // namespace tessera::comm
