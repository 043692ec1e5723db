// A request to stop that every rank of this process hears of.
#pragma once

#include <cstdint>

namespace tessera::comm {

// Asks every rank of every running job in this process to stop in its collective or at its next (for Ctrl-C).
// Async-signal-safe. A later run_ranks starts afresh. Ranks throw Stopped.
void request_stop();

// How often request_stop was called in this process.
uint64_t stop_requests();

// Throws Stopped if request_stop was called since stop_requests() was `before`.
void throw_if_stopped_since(uint64_t before);

}  // namespace tessera::comm
