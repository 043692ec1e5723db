#include "tessera/python/interrupts.h"

#include <chrono>
#include <future>
#include <thread>

#include <ATen/ThreadLocalState.h>
#include <c10/util/ScopeExit.h>

#include "tessera/comm/context.h"
#include "tessera/comm/run_ranks.h"

namespace tessera::python {
namespace {

// How long a signal may wait: short for a person, long beside a step.
constexpr auto kLook = std::chrono::milliseconds(50);

bool is_main_thread() {
  return PyThread_get_thread_ident() == py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
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
  while (!wait()) {
    if (PyErr_CheckSignals() != 0) {
      stop_ranks();
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
  owed_ = bodies_;
}

void Interrupts::interrupt_bodies() {
  if (owed_.empty()) {
    return;
  }
  const py::dict frames = py::module_::import("sys").attr("_current_frames")();
  std::erase_if(owed_, [&](unsigned long thread) {
    const py::int_ name(thread);
    return !(frames.contains(name) && is_importing(frames[name])) && PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt) == 1;
  });
}

py::object Interrupts::run_body(const py::function& body) {
  if (raised_) {  // before this rank began
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }
  const auto thread = PyThread_get_thread_ident();
  bodies_.insert(thread);
  const auto ended = c10::make_scope_exit([&] {
    bodies_.erase(thread);
    owed_.erase(thread);
  });
  return body();
}

}  // namespace tessera::python
