// Ctrl-C while ranks run as threads.
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "tessera/python/bind.h"

namespace tessera::python {

// Python runs its signal handlers on the main thread alone, which waits while ranks run. This is what looks at them meanwhile, for
// one job. All of it is made, used and destroyed with Python's lock, which guards the members.
class Interrupts {
 public:
  // Runs `job`, which waits for its rank threads, without Python's lock; throws what it throws. On the main thread: when a signal
  // handler raises, as that of Ctrl-C does, ranks get a KeyboardInterrupt in their Python code and Stopped in their collectives,
  // and once they have ended the handler's exception is thrown instead. A rank in a call that does not return is waited for, and
  // one that imports a module gets its KeyboardInterrupt afterwards: amid an import it would leave others waiting for its locks.
  void run(const std::function<void()>& job);

  // Runs the body of one of the job's ranks, on its thread.
  py::object run_body(const py::function& body);

 private:
  void run_beside(const std::function<void()>& job);
  void stop_ranks();
  void interrupt_bodies();

  std::set<unsigned long> bodies_;  // Python's names of the threads that run one
  std::set<unsigned long> owed_;    // those of them that are still to get a KeyboardInterrupt
  std::optional<py::error_already_set> raised_;
};

}  // namespace tessera::python
