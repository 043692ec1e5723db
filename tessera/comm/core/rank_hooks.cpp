#include "tessera/comm/core/rank_hooks.h"

#include <mutex>
#include <utility>

#include "tessera/comm/core/context.h"

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

using EndHooks = std::vector<std::function<void()>>;

std::shared_ptr<void>& end_hooks() {
  static const char kSlot = 0;
  return RankContext::require().slot(&kSlot);
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

void at_end_of_rank(std::function<void()> hook) {
  auto& slot = end_hooks();
  if (!slot) {
    slot = std::make_shared<EndHooks>();
  }
  static_cast<EndHooks*>(slot.get())->push_back(std::move(hook));
}

void run_end_of_rank() {
  const auto kept = std::exchange(end_hooks(), nullptr);
  for (const auto& hook : kept ? *static_cast<EndHooks*>(kept.get()) : EndHooks()) {
    hook();
  }
}

}  // namespace tessera::comm
