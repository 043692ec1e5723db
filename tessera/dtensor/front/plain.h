// Plain tensors inside a rank: what happens to factories and random draws that see no DTensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Catches factories while it lives: `make` gets the operator and its arguments on the stack and leaves a tensor there.
// One per thread, innermost first.
class FactoryHook {
 public:
  virtual ~FactoryHook() = default;
  virtual void make(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack) = 0;
};

class FactoryScope {
 public:
  explicit FactoryScope(FactoryHook* hook);
  ~FactoryScope();
  FactoryScope(const FactoryScope&) = delete;
  FactoryScope& operator=(const FactoryScope&) = delete;

 private:
  FactoryHook* previous_;
};

// Puts the calling thread under interception (Note [Interception]), and has autograd replay views, until the returned
// guard dies; run_ranks calls it for each rank.
std::shared_ptr<void> intercept_this_thread();

// What a factory of the program made, as a replicated DTensor inside a region; elsewhere, and if it is one already, as
// it is. For factories whose calls look like those of libtorch's kernels from below (torch::zeros and Python's run
// below autograd).
at::Tensor to_region(const at::Tensor& made);

// Registers the kernels of the intercepting key. Called once, with the other kernels.
void register_plain_kernels(class KernelRegistry& registry);

}  // namespace tessera::dtensor
