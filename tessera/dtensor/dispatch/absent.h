// Calls on tensors that are at one place of an axis (On), on the ranks of the other places.
#pragma once

#include <utility>
#include <vector>

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// What a call leaves where it does not run: parts of no elements. The stack holds the arguments.
void give_nothing(const OpInfo& info, const CallPlan& plan, std::vector<c10::IValue>& stack);

// In a walk of a part of the vocabulary (layout/vocabulary.h): whether the call adds what that part makes of a
// parameter's gradient to what another part makes of it, in a walk of its own. Then the first alone is on the stack.
bool take_own_term(Invocation& call);

// The placements with Replicate where they are On.
layout::Placements without_on(layout::Placements placements);

// For kernels of their own (OpInfo::special), which have no plan and so no home: while this lives, operands that are On
// are Replicate; afterwards they lie where they lay. Those that take parts as they are, whatever their sizes (lists,
// aliases, what draws random numbers), are let be. Collective over the axes on which operands are On.
class Everywhere {
 public:
  Everywhere(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args);
  Everywhere(const Everywhere&) = delete;
  Everywhere& operator=(const Everywhere&) = delete;
  ~Everywhere() { put_back(); }

 private:
  void put_back();

  RankState& state_;
  const OpInfo& info_;
  std::vector<std::pair<at::Tensor, layout::Placements>> moved_;  // and where it lay
};

}  // namespace tessera::dtensor
