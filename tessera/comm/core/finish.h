// A request to end that a program follows when it may do so without loss.
#pragma once

#include <cstdint>

namespace tessera::comm {

// Asks the programs of this process to end when it suits them: false, and request_stop(), if none has said that it will
// (FinishScope). Async-signal-safe.
bool request_finish();

// How often request_finish was called while a program would follow.
uint64_t finish_requests();

// While one lives, a program of this process looks at finish_requests() now and then, and ends.
class FinishScope {
 public:
  FinishScope();
  ~FinishScope();
  FinishScope(const FinishScope&) = delete;
  FinishScope& operator=(const FinishScope&) = delete;
};

}  // namespace tessera::comm
