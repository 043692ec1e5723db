// What every backend does around a collective.
#pragma once

#include <optional>

#include "tessera/comm/call/call.h"
#include "tessera/comm/core/wait_hook.h"

namespace tessera::comm {

class RankContext;

// The scope of one collective on the calling rank, for backends: verifies and completes `call`, throws Stopped if the
// job was asked to stop, and tells the watchers. A wait may follow (wait_hook.h).
class CallScope {
 public:
  explicit CallScope(Call& call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  const Call& call_;
  RankContext* context_;
  int exceptions_;
  std::optional<WaitScope> wait_;
};

// Says in the calling rank's ledger that `call` was composed of `parts`, because the backend has no such collective.
void note_composed(const Call& call, const char* parts);

}  // namespace tessera::comm
