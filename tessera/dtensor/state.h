// What the dtensor floor keeps for each rank.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
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

// Which plan built which autograd node: a gradient takes the layout of its forward value (mechanisms: C2). First write wins;
// the newest kSize nodes are kept.
class ForwardPlans {
 public:
  struct Slot {
    uint64_t sequence = ~uint64_t{0};
    const CallPlan* plan = nullptr;
    uint64_t use = 0;  // Sites::use of the call
  };

  void record(uint64_t sequence, const CallPlan* plan, uint64_t use) {
    Slot& slot = slots_[sequence % kSize];
    if (slot.sequence != sequence) slot = {sequence, plan, use};
  }
  // Null if the node is not known.
  const Slot* find(uint64_t sequence) const {
    const Slot& slot = slots_[sequence % kSize];
    return slot.sequence == sequence ? &slot : nullptr;
  }

 private:
  static constexpr size_t kSize = 1 << 14;
  std::vector<Slot> slots_ = std::vector<Slot>(kSize);
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
};

}  // namespace tessera::dtensor
