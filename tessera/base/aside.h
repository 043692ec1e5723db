// Work that may hang.
#pragma once

#include <chrono>
#include <functional>

namespace tessera::base {

// Runs `body` on a thread of its own and waits for it, at most so long. Whether it has ended; if not, the thread stays,
// so that `body` owns what it uses. What it throws counts as an end. Throws if no thread can be started.
bool run_aside(std::function<void()> body, std::chrono::milliseconds limit);

}  // namespace tessera::base
