// What the dtensor floor keeps for each rank.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/plan/forward_plans.h"
#include "tessera/dtensor/plan/plan_cache.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/sites.h"
#include "tessera/dtensor/state/call_flags.h"
#include "tessera/layout/lattice.h"

namespace tessera::dtensor {

// What happens when an operator needs a redistribution that the program did not write.
enum class Mode : uint8_t { kImplicit, kExplicit, kWarn };

// Gathered copies kept beside the tensors they were gathered from, oldest dropped first when they exceed the budget.
// The newest always stays.
class GatherCache {
 public:
  int64_t budget = 0;
  void add(const MetaPtr& meta, int64_t bytes);
  void clear();

 private:
  struct Entry {
    const Meta* tensor;  // for comparing
    c10::weak_intrusive_ptr<Meta> meta;
    int64_t bytes = 0;
  };
  void drop_oldest();
  std::deque<Entry> entries_;
  int64_t bytes_ = 0;
};

// What means over some of the step's samples are; see part_means.h.
struct StepMeans {
  int64_t parts = 1, samples = 0;  // of a step that the program takes in a loop of its own: its passes, and their
                                   // samples together; 0: none yet
  bool in_job = false;             // the micro-batches are a job's, of any sizes
  bool as_shares = false;          // such a mean is its share of the step's, not that of its own samples
  bool told_undivided = false;     // the program knows that its losses are not divided
};

class OpObserver;

struct RankState {
  explicit RankState(comm::RankContext& context) : ctx(context) {}

  // The state of the calling rank; `current` is null outside of a rank.
  static RankState* current();
  static RankState& require();

  comm::RankContext& ctx;
  PlanCache plans;
  Moves moves{ctx};
  ForwardPlans forward_plans;
  GatherCache gathered;
  Sites sites;
  bool recomputing = false;                     // a forward run inside backward
  class Continuation* continuation = nullptr;   // of the step's earlier micro-batches; see pending.h
  uint64_t sums_made = 0;                       // sums over samples, for telling copies of one from another
  int64_t step_tokens = 0;                      // that the step's mean loss divides by; 0: as many as there are
  std::optional<layout::Mesh> region;           // factories on plain tensors give DTensors on this mesh
  std::optional<layout::Mesh> backward_region;  // and inside backward passes on this one
  std::deque<ParameterInfo> parameters;
  StepMeans means;

  // What makes every call of the rank slow; each setter gives back what was there.

  // CallFlags of the four below.
  uint32_t flags() const { return flags_; }
  Mode mode() const { return mode_; }
  Mode set_mode(Mode mode);
  // Whether plain operands are compared across ranks.
  bool checks_plain() const { return flags_ & kChecksPlain; }
  bool set_checks_plain(bool on);
  // Set: numerics are exact.
  const std::optional<layout::Lattice>& lattice() const { return lattice_; }
  void set_lattice(std::optional<layout::Lattice> lattice);
  // Not owned; null: nobody watches. See observer.h.
  OpObserver* observer() const { return observer_; }
  OpObserver* set_observer(OpObserver* observer);

 private:
  void set_flag(CallFlag flag, bool on) { flags_ = on ? flags_ | flag : flags_ & ~uint32_t{flag}; }

  uint32_t flags_ = 0;
  Mode mode_ = Mode::kImplicit;
  std::optional<layout::Lattice> lattice_;
  OpObserver* observer_ = nullptr;
};

}  // namespace tessera::dtensor
