// What the dtensor floor keeps for each rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tessera/comm/context.h"
#include "tessera/dtensor/call_plan.h"
#include "tessera/dtensor/meta.h"
#include "tessera/dtensor/redistribute.h"
#include "tessera/dtensor/sites.h"
#include "tessera/layout/lattice.h"

namespace tessera::dtensor {

// What happens when an operator needs a redistribution that the program did not write.
enum class Mode : uint8_t { kImplicit, kExplicit, kWarn };

// The plans of one operator on one rank, by key.
class PlanCache {
 public:
  using Key = c10::SmallVector<uint64_t, 24>;

  CallPlan* find(const Key& key, uint64_t hash) const;
  CallPlan* insert(const Key& key, uint64_t hash, std::unique_ptr<CallPlan> plan);
  size_t size() const { return count_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    Key key;
    std::unique_ptr<CallPlan> plan;
  };
  std::vector<std::unique_ptr<Entry>> slots_;
  size_t count_ = 0;
};

// Which plan built which autograd node, by the node's sequence number: a gradient takes the layout of its forward value (mechanisms: C2).
// First write wins.
//
// The newest nodes are kept: kFewest of them, and as many as are newer than any whose gradient was taken. So a forward pass of any
// length, up to kMost nodes, is known to its backward, and what its records need is used again by the next pass. What older graphs
// lost is told apart from what was never recorded: see `is_lost`.
class ForwardPlans {
 public:
  static constexpr size_t kFewest = size_t{1} << 14, kMost = size_t{1} << 20;

  struct Slot {
    int64_t sequence = kNone;
    const CallPlan* plan = nullptr;
    uint64_t use = 0;  // Sites::use of the call
  };

  void record(uint64_t node, const CallPlan* plan, uint64_t use) {
    const auto sequence = static_cast<int64_t>(node);
    Slot* slot = &slot_of(sequence);
    if (slot->sequence == sequence) return;
    if (C10_UNLIKELY(slot->sequence > differentiated_)) slot = &grow(sequence);
    *slot = {sequence, plan, use};
  }

  // Null if the node is not known.
  const Slot* find(uint64_t node) {
    const auto sequence = static_cast<int64_t>(node);
    const Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence) return nullptr;
    differentiated_ = std::max(differentiated_, sequence);
    return &slot;
  }

  bool holds(uint64_t node) const { return slots_[node & mask_].sequence == static_cast<int64_t>(node); }

  // Whether the node, which `find` does not know, may have been recorded and given its place to newer ones.
  bool is_lost(uint64_t node) const;

  // How many nodes there is room for.
  size_t size() const { return slots_.size(); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

  Slot& slot_of(int64_t sequence) { return slots_[static_cast<size_t>(sequence) & mask_]; }
  // The node's slot when there is room for twice as many, or, beyond kMost, that of an older one.
  Slot& grow(int64_t sequence);

  std::vector<Slot> slots_ = std::vector<Slot>(kFewest);
  size_t mask_ = kFewest - 1;
  int64_t differentiated_ = kNone;  // the newest node whose gradient was taken
};

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
  int64_t parts = 1, samples = 0;  // of a step that the program takes in a loop of its own: its passes, and their samples together; 0: none yet
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
  std::vector<PlanCache> caches;  // by OpInfo::id
  Moves moves;
  ForwardPlans forward_plans;
  GatherCache gathered;
  Sites sites;
  Mode mode = Mode::kImplicit;
  bool recomputing = false;               // a forward run inside backward
  bool check_plain = false;               // hash plain operands across ranks
  std::optional<layout::Lattice> lattice;  // set: numerics are exact
  class Continuation* continuation = nullptr;  // of the step's earlier micro-batches; see pending.h
  uint64_t sums_made = 0;                 // sums over samples, for telling copies of one from another
  int64_t step_tokens = 0;                // that the step's mean loss divides by; 0: as many as there are
  std::optional<layout::Mesh> region;     // factories on plain tensors give DTensors on this mesh
  std::optional<layout::Mesh> backward_region;  // and inside backward passes on this one
  std::deque<ParameterInfo> parameters;
  OpObserver* observer = nullptr;         // not owned; see observer.h
  StepMeans means;
};

}  // namespace tessera::dtensor
