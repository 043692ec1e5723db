// Observers of collectives.
#pragma once

namespace tessera::comm {

struct Call;

// Observes the collectives of one rank, on the rank's thread. What it throws is swallowed, and it is not called again.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void on_begin(const Call& call) = 0;
  // `failed`: the call ends by an exception.
  virtual void on_end(const Call& call, bool failed) = 0;
};

}  // namespace tessera::comm
