// What surrounds every wait for other ranks.
#pragma once

namespace tessera::comm {

// Called on the rank's thread before it may wait and after it has: a language front gives up its interpreter's lock in
// between, which the rank that is waited for may need. `end` gets what `begin` returned. Neither may throw.
struct WaitHook {
  void* (*begin)() = nullptr;
  void (*end)(void* token) = nullptr;
};

// For the whole process, before any rank runs.
void set_wait_hook(WaitHook hook);

// Stands around a wait.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  void* token_;
};

}  // namespace tessera::comm
