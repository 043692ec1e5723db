#include "tessera/python/interrupts.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <string_view>
#include <thread>

#include <unistd.h>

#include <ATen/ThreadLocalState.h>
#include <c10/util/ScopeExit.h>

#include "tessera/base/text.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/threads/run_ranks.h"

namespace tessera::python {
namespace {

using Clock = std::chrono::steady_clock;

// How long a signal may wait: short for a person, long beside a step.
constexpr auto kLook = std::chrono::milliseconds(50);
// After how long without a look a foreign call must be holding Python's lock.
constexpr auto kBlind = std::chrono::seconds(1);
// Which Ctrl-C ends the process.
constexpr int kLast = 3;

// What the handler of SIGINT reads, which may take no lock.
std::atomic<PyOS_sighandler_t> of_python;
std::atomic<Clock::rep> looked_at;
std::atomic<int> unseen;  // how often it came since then
std::atomic<bool> is_last_next;
std::atomic<pid_t> owner;  // children inherit the handler

void on_interrupt(int signal) {
  constexpr std::string_view kLine =
      "tessera: Ctrl-C has ended no rank: a call of one holds Python's lock; one more kills the process\n";
  const bool is_blind = Clock::now().time_since_epoch().count() - looked_at > Clock::duration(kBlind).count();
  const bool is_ours = ::getpid() == owner;
  const int count = is_ours && is_blind ? ++unseen : 0;
  if (is_ours && (is_last_next || count == kLast)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this returns
    return;
  }
  if (count == kLast - 1) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  }
  of_python.load()(signal);
}

// Stands before Python's handler of Ctrl-C while the main thread waits for a job: the third one is to end the process
// even if no thread gets Python's lock any more.
class LastInterrupt {
 public:
  LastInterrupt() {
    const auto handler = PyOS_getsig(SIGINT);
    is_installed_ = handler != SIG_DFL && handler != SIG_IGN && handler != &on_interrupt;
    look();
    if (is_installed_) {
      of_python = handler;
      owner = ::getpid();
      PyOS_setsig(SIGINT, &on_interrupt);
    }
  }
  ~LastInterrupt() {
    is_last_next = false;
    if (is_installed_ && PyOS_getsig(SIGINT) == &on_interrupt) {
      PyOS_setsig(SIGINT, of_python);
    }
  }
  LastInterrupt(const LastInterrupt&) = delete;
  LastInterrupt& operator=(const LastInterrupt&) = delete;

  // The main thread has Python's lock, and sees for itself what came.
  void look() const {
    looked_at = Clock::now().time_since_epoch().count();
    unseen = 0;
  }

  void kill_by_the_next() const { is_last_next = true; }

 private:
  bool is_installed_ = false;  // not where Ctrl-C kills or is ignored anyway, and once
};

bool is_main_thread() {
  return PyThread_get_thread_ident() ==
         py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

bool is_importing(py::object frame) {
  for (; !frame.is_none(); frame = frame.attr("f_back")) {
    if (frame.attr("f_code").attr("co_filename").cast<std::string>().starts_with("<frozen importlib")) {
      return true;
    }
  }
  return false;
}

}  // namespace

void drop_interrupt() {
  if (PyErr_CheckSignals() != 0) {
    PyErr_Clear();
  }
}

void Interrupts::run(const std::function<void()>& job) {
  // A rank cannot start ranks: the job says so, where it finds the caller's context.
  if (is_main_thread() && !comm::RankContext::current()) {
    return run_beside(job);
  }
  const py::gil_scoped_release unlocked;
  job();
}

void Interrupts::run_beside(const std::function<void()>& job) {
  const at::ThreadLocalState caller;
  std::packaged_task<void()> task([&] {
    const at::ThreadLocalStateGuard as_caller(caller);
    job();
  });
  auto done = task.get_future();
  std::thread thread(std::move(task));
  const auto wait = [&] {
    const py::gil_scoped_release unlocked;
    return done.wait_for(kLook) == std::future_status::ready;
  };
  const LastInterrupt last;
  while (!wait()) {
    last.look();
    if (PyErr_CheckSignals() != 0) {
      const bool is_second = raised_.has_value();
      stop_ranks();
      if (is_second) {
        PySys_FormatStderr("tessera: Ctrl-C has not ended %s; one more kills the process\n", where().c_str());
        last.kill_by_the_next();
      }
    }
    interrupt_bodies();
  }
  thread.join();
  if (raised_) {
    throw *raised_;
  }
  done.get();
}

void Interrupts::stop_ranks() {
  raised_.emplace();
  comm::request_stop();
  for (const auto& [thread, rank] : bodies_) {
    owed_.insert(thread);
  }
}

std::string Interrupts::where() const {
  const py::dict frames = py::module_::import("sys").attr("_current_frames")();
  const auto write = [&](std::ostream& out, const auto& body) {
    const py::object frame = frames.attr("get")(body.first);
    out << "rank " << body.second;
    if (!frame.is_none()) {
      const py::object code = frame.attr("f_code");
      out << " ("
          << std::string(
                 py::str("{}:{}, in {}").format(code.attr("co_filename"), frame.attr("f_lineno"), code.attr("co_name")))
          << ")";
    }
  };
  return bodies_.empty() ? "the job" : base::join(bodies_, ", ", write);
}

std::string Interrupts::last_look() const {
  const py::gil_scoped_acquire locked;
  for (const char* name : {"stdout", "stderr"}) {
    try {
      py::module_::import("sys").attr(name).attr("flush")();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("tessera.run_ranks");
    }
  }
  return bodies_.empty() ? "" : where();
}

void Interrupts::interrupt_bodies() {
  if (owed_.empty()) {
    return;
  }
  const py::dict frames = py::module_::import("sys").attr("_current_frames")();
  std::erase_if(owed_, [&](unsigned long thread) {
    const py::int_ name(thread);
    return !(frames.contains(name) && is_importing(frames[name])) &&
           PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt) == 1;
  });
}

py::object Interrupts::run_body(const py::function& body) {
  if (raised_) {  // before this rank began
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }
  const auto thread = PyThread_get_thread_ident();
  bodies_.emplace(thread, comm::RankContext::require().rank);
  const auto ended = c10::make_scope_exit([&] {
    bodies_.erase(thread);
    owed_.erase(thread);
  });
  return body();
}

}  // namespace tessera::python
