#include "tessera/dtensor/plan/forward_plans.h"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace tessera::dtensor {

bool ForwardPlans::is_lost(uint64_t node) const {
  const auto sequence = static_cast<int64_t>(node);
  const Slot& slot = slots_[node & mask_];
  return sequence >= 0 && (slot.sequence > sequence || (slot.sequence == sequence && !slot.plan));
}

ForwardPlans::Slot& ForwardPlans::grow(int64_t sequence) {
  while (slots_.size() < kMost && slot_of(sequence).sequence > differentiated_) {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.sequence != kNone) {
        slot_of(slot.sequence) = slot;
      }
    }
  }
  return slot_of(sequence);
}

// Some of the nodes call no operator for their gradient (that of a sum is the gradient that came); so all that the pass
// executes are noted.
void ForwardPlans::note_pass(int64_t sequence) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == last_task_ || torch::autograd::get_current_graph_task_keep_graph()) {
    return;
  }
  last_task_ = task;
  last_time_.push_back(sequence);  // the first, which libtorch does not count among them
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();  // empty: all
  for (torch::autograd::Node* node : *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    const auto found = executed->find(node);
    if (executed->empty() || (found != executed->end() && found->second.should_execute())) {
      last_time_.push_back(static_cast<int64_t>(node->sequence_nr()));
    }
  }
}

void ForwardPlans::let_go() {
  if (torch::autograd::get_current_graph_task_id() != -1) {
    return;
  }
  for (int64_t sequence : last_time_) {
    Slot& slot = slot_of(sequence);
    if (slot.sequence != sequence || !slot.holds_plan) {
      continue;
    }
    --slot.plan->holders;
    slot.holds_plan = false;
    if (!slot.plan->is_kept) {
      slot.plan = nullptr;
    }
  }
  last_time_.clear();
}

}  // namespace tessera::dtensor
