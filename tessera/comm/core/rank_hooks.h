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

}  // namespace tessera::comm
