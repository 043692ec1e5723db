// One call of an operator on DTensors, on its way through the dispatch kernel.
#pragma once

#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/dtensor/dispatch/scan.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Lives as long as the call, on its thread.
struct Invocation {
  // Scans the arguments on top of the stack.
  Invocation(const OpInfo& info, torch::jit::Stack& stack);

  // What lies on top of the stack: the arguments until the operator takes them, then its results.
  c10::IValue* args() const { return stack.data() + (stack.size() - info.num_args()); }
  c10::ArrayRef<c10::IValue> arguments() const { return c10::ArrayRef<c10::IValue>(args(), info.num_args()); }
  c10::ArrayRef<c10::IValue> results() const {
    return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - info.num_returns()), info.num_returns());
  }

  // Whether it is a model's, which reads parameters gathered where the plan says so, and no optimizer's, which works on
  // what is stored. On a rank only.
  bool reads_gathered() const;

  // Names the call's place in the program: the forward call whose derivative it is, or the reading of a parameter.
  void place();
  // Whether it is part of a derivative, and not of a forward pass that is run again inside one. On a rank only.
  bool is_in_derivative() const { return node && !state->pass.is_recomputing(); }

  const OpInfo& info;
  torch::jit::Stack& stack;
  RankState* state;  // null outside of a rank
  Scan scan;
  uint32_t flags = 0;                           // CallFlags of the operands and of the rank
  NodePtr node;                                 // whose gradient is taken
  const ForwardPlans::Slot* forward = nullptr;  // of the call that made the node, where it is known
  uint64_t use = 0;                             // the call's name for sums over samples, in `exact`
};

}  // namespace tessera::dtensor
