// What a rank keeps for `exact` numerics.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/dtensor/state/call_flags.h"
#include "tessera/sums/lattice.h"

namespace tessera::dtensor {

class Continuation;

// The lattice, and the sums over samples that are under way.
class Exact {
 public:
  explicit Exact(RankFlags& flags) : flags_(flags) {}
  Exact(const Exact&) = delete;
  Exact& operator=(const Exact&) = delete;

  // Set: numerics are exact.
  const std::optional<sums::Lattice>& lattice() const { return lattice_; }
  void set_lattice(std::optional<sums::Lattice> lattice);

  // That the step's mean loss divides by; 0: as many as there are.
  int64_t step_tokens() const { return step_tokens_; }
  // Throws if negative.
  void set_step_tokens(int64_t tokens);

  // The sums of the step's earlier micro-batches, while they may go on; see pending.h. Null: there are none.
  Continuation* continuation() const { return continuation_; }
  // One at a time.
  void begin_continuation(Continuation& continuation);
  void end_continuation() { continuation_ = nullptr; }

  // A number for a new sum over samples, for telling copies of one from another.
  uint64_t next_sum() { return ++sums_made_; }

 private:
  RankFlags& flags_;
  std::optional<sums::Lattice> lattice_;
  int64_t step_tokens_ = 0;
  Continuation* continuation_ = nullptr;
  uint64_t sums_made_ = 0;
};

}  // namespace tessera::dtensor
