// Ctrl-C while ranks run as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tessera/python/bind.h"

namespace tessera::python {

// Python runs its signal handlers on the main thread alone, which waits while ranks run. This is what looks at them
// meanwhile, for one job. All of it is made, used and destroyed with Python's lock, which guards the members.
class Interrupts {
 public:
  // Runs `job`, which waits for its rank threads, without Python's lock; throws what it throws. On the main thread:
  // when a signal handler raises, as that of Ctrl-C does, ranks get a KeyboardInterrupt in their Python code and
  // Stopped in their collectives, and once they have ended the handler's exception is thrown instead. A rank in a
  // foreign call is waited for, and one that imports a module gets its KeyboardInterrupt afterwards: amid an import it
  // would leave others waiting for its locks. The second time the ranks get another one, and stderr a line that says
  // which are still there, and where; the next SIGINT kills the process. Where a foreign call keeps Python's lock, so
  // that nothing of this can be done, the third SIGINT does.
  void run(const std::function<void()>& job);

  // Runs the body of one of the job's ranks, on its thread.
  py::object run_body(const py::function& body);

  // Before the process ends without Python: writes out what the program has printed, and says where its ranks are. On
  // any thread; waits for Python's lock.
  std::string last_look() const;

 private:
  void run_beside(const std::function<void()>& job);
  void stop_ranks();
  void interrupt_bodies();
  std::string where() const;  // `rank 1 (train.py:12, in load)`: of the ranks whose bodies run

  std::map<unsigned long, int64_t> bodies_;  // their ranks, by Python's names of the threads that run them
  std::set<unsigned long> owed_;             // threads that are still to get a KeyboardInterrupt
  std::optional<py::error_already_set> raised_;
};

// Takes back a Ctrl-C that Python has yet to raise, after a wait for other ranks has failed: it came to all of a
// launcher's processes, the wait's error says which rank it ended, and the second exception would cut off what is shown
// of that. With Python's lock.
void drop_interrupt();

}  // namespace tessera::python
