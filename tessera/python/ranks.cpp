// Ranks as threads of this process, and this process as a rank.
#include <exception>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/core/wait_hook.h"
#include "tessera/comm/join/process.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/launch/environment.h"
#include "tessera/python/bind.h"
#include "tessera/python/interrupts.h"

namespace tessera::python {
namespace {

// Python's lock is never held in a wait: another rank thread may need it to get to where this one waits for it.
void* unlock() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

void lock_again(void* state) {
  if (!state) {
    return;
  }
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  if (std::uncaught_exceptions() > 0) {
    drop_interrupt();
  }
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

py::object run_ranks(const py::function& body, int64_t ranks, double deadline, double grace) {
  py::object result = py::none();
  Interrupts interrupts;
  const comm::RunOptions options{.deadline = milliseconds_of(deadline), .grace = milliseconds_of(grace), .where = [&] {
                                   return interrupts.last_look();
                                 }};
  interrupts.run([&] {
    comm::run_ranks(
        ranks,
        [&](int64_t rank) {
          const py::gil_scoped_acquire locked;
          py::object own = interrupts.run_body(body);
          if (rank == 0) {
            result = std::move(own);
          }
        },
        options);
  });
  return result;
}

py::object run_fake(const py::function& body, int64_t ranks, int64_t rank) {
  py::object result = py::none();
  comm::run_fake(ranks, rank, [&] { result = body(); });
  return result;
}

int64_t rank() { return comm::RankContext::require().rank; }
int64_t world_size() { return comm::RankContext::require().world_size; }
bool in_rank() { return comm::RankContext::current() != nullptr; }

// Set while this process is a rank.
std::optional<comm::JoinedProcess> the_process;

comm::ProcessOptions options_of(double deadline) {
  comm::ProcessOptions options;
  options.deadline = milliseconds_of(deadline);
  return options;
}

void join_launched(double deadline) {
  const auto place = launch::find_place();
  TESSERA_CHECK_AS(ConfigError, place.has_value(),
                   "[join] no launcher started this process. Start it by torchrun, mpirun, srun or tessera launch; or "
                   "run ranks as threads with run_ranks(body, n)");
  the_process.emplace(comm::join_process(*place, options_of(deadline)));
}

void join_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const c10::intrusive_ptr<c10d::Store>& store,
                double deadline) {
  the_process.emplace(comm::join_process(comm::hand_in(group, store), options_of(deadline)));
}

// Ends the rank: by an error, which the others get, or well, when all have come so far.
void leave(const std::optional<std::string>& error) {
  if (auto process = std::exchange(the_process, std::nullopt)) {
    error ? process->fail(*error) : process->leave();
  }
}

// One of several ranks in one process.
bool in_rank_thread() {
  return !the_process && comm::RankContext::current() && comm::RankContext::current()->world_size > 1;
}

void barrier() { comm::RankContext::require().world->barrier(); }

}  // namespace

void bind_ranks(py::module_& module) {
  comm::set_wait_hook({&unlock, &lock_again});
  module.def("run_ranks", &run_ranks);
  module.def("run_fake", &run_fake);
  module.def("rank", &rank);
  module.def("world_size", &world_size);
  module.def("in_rank", &in_rank, "Whether this thread or process is a rank.");
  module.def("in_rank_thread", &in_rank_thread);
  module.def("barrier", &barrier, Unlocked());
  module.def("is_launched", [] { return launch::find_place().has_value(); });
  module.def("join_launched", &join_launched, Unlocked());
  module.def("join_group", &join_group, Unlocked());
  module.def("leave", &leave, Unlocked());
}

}  // namespace tessera::python
