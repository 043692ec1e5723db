// One clock for everything that is traced.
#pragma once

#include <chrono>
#include <cstdint>

namespace tessera::trace {

// Nanoseconds of a clock that never goes back; cheap. Its zero is the machine's own.
inline int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// What to add to now_ns() for nanoseconds since 1970, so that processes and machines can be laid side by side (as well
// as their clocks agree).
inline int64_t ns_since_1970() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1) - now_ns();
}

}  // namespace tessera::trace
