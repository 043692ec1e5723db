#include "tessera/comm/core/rank_hooks.h"

#include <mutex>

namespace tessera::comm {

namespace {

struct Hooks {
  std::mutex mutex;
  std::vector<RankHook> list;
};

Hooks& hooks() {
  static Hooks hooks;
  return hooks;
}

}  // namespace

void add_rank_hook(RankHook hook) {
  std::lock_guard lock(hooks().mutex);
  hooks().list.push_back(std::move(hook));
}

std::vector<RankHook> rank_hooks() {
  std::lock_guard lock(hooks().mutex);
  return hooks().list;
}

}  // namespace tessera::comm
