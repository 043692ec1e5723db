// What a backward pass knows of the forward calls whose gradients it takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <c10/macros/Macros.h>

#include "tessera/dtensor/plan/call_plan.h"

namespace tessera::dtensor {

// Which plan built which autograd node, by the node's sequence number: a gradient takes the layout of its forward value
// (mechanisms: C2). First write wins.
//
// The newest nodes are kept: kFewest of them, and as many as are newer than any whose gradient was taken (or as
// keep_from says). So a forward
// pass of any length, up to kMost nodes, is known to its backward, and what its records need is used again by the next
// pass. What older graphs lost is told apart from what was never recorded: see `is_lost`.
//
// A record holds its plan (Note [Plans that do not come back]) until its gradient was taken in a pass that does not
// keep the graph.
class ForwardPlans {
 public:
  static constexpr size_t kFewest = size_t{1} << 14, kMost = size_t{1} << 20;

  struct Slot {
    int64_t sequence = kNone;
    CallPlan* plan = nullptr;
    uint64_t use = 0;  // Sites::use of the call
    bool holds_plan = false;
  };

  void record(uint64_t node, CallPlan& plan, uint64_t use) {
    const auto sequence = static_cast<int64_t>(node);
    Slot* slot = &slot_of(sequence);
    if (slot->sequence == sequence) {
      return;
    }
    if (C10_UNLIKELY(slot->sequence > differentiated_)) {
      slot = &grow(sequence);
    }
    if (C10_UNLIKELY(slot->holds_plan)) {
      --slot->plan->holders;
    }
    *slot = {sequence, &plan, use, !plan.is_kept};
    plan.holders += !plan.is_kept;
  }

  // Null if the node is not known. For a derivative that runs now.
  const Slot* find(uint64_t node) {
    const auto sequence = static_cast<int64_t>(node);
    const Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence || !slot.plan) {
      return nullptr;
    }
    differentiated_ = std::max(differentiated_, std::min(sequence, kept_from_ - 1));
    if (C10_UNLIKELY(slot.holds_plan)) {
      note_pass(sequence);
    }
    return &slot;
  }

  // Null likewise. For who does not take the gradient.
  const Slot* peek(uint64_t node) const {
    const Slot& slot = slots_[node & mask_];
    return slot.sequence == static_cast<int64_t>(node) && slot.plan ? &slot : nullptr;
  }

  bool holds(uint64_t node) const { return slots_[node & mask_].sequence == static_cast<int64_t>(node); }

  // Whether the node, which `find` does not know, may have been recorded and given its place to newer ones, or was
  // differentiated for the last time.
  bool is_lost(uint64_t node) const;

  // Keeps the records of nodes from this one on, whose gradients are to come, while those of newer ones are taken.
  void keep_from(int64_t node) { kept_from_ = node; }

  // Lets go of plans whose gradients were taken, if no backward pass runs.
  void let_go();

  // How many nodes there is room for.
  size_t size() const { return slots_.size(); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

  Slot& slot_of(int64_t sequence) { return slots_[static_cast<size_t>(sequence) & mask_]; }
  // The node's slot when there is room for twice as many, or, beyond kMost, that of an older one.
  Slot& grow(int64_t sequence);
  void note_pass(int64_t sequence);

  std::vector<Slot> slots_ = std::vector<Slot>(kFewest);
  size_t mask_ = kFewest - 1;
  // The newest node of which it and all older ones are done: their gradients were taken, or nobody will.
  int64_t differentiated_ = kNone;
  int64_t kept_from_ = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> last_time_;  // nodes of graphs that were not kept
  int last_task_ = -1;              // the pass whose nodes were added to them last
};

}  // namespace tessera::dtensor
