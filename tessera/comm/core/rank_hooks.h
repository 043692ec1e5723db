// What higher floors need in every rank.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace tessera::comm {

using RankHook = std::function<std::shared_ptr<void>()>;

// Has every later rank thread call `hook` at its start and drop the returned guard at its end: for thread-local state
// that higher floors need in every rank. Hooks run in the order added, within the rank's context; never removed.
// Thread-safe.
void add_rank_hook(RankHook hook);

// Those added so far. Thread-safe.
std::vector<RankHook> rank_hooks();

// Has the calling rank call `hook` once its program has returned, before it waits for the others to be done: the last
// moment for collectives. Not called when the program threw.
void at_end_of_rank(std::function<void()> hook);

// Calls them, and forgets them. On the rank's thread.
void run_end_of_rank();

}  // namespace tessera::comm
