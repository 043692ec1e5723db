// The kernel behind every operator on DTensors.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/dtensor/call_plan.h"
#include "tessera/dtensor/op_info.h"
#include "tessera/dtensor/state.h"

namespace tessera::dtensor {

// Runs `info`'s operator on the arguments on top of the stack, of which at least one is (or was taken for) a DTensor.
// Hit: the key is looked up, operands are moved as the plan says, the local operator runs and its results are wrapped.
void dispatch(const OpInfo& info, torch::jit::Stack& stack);

// Decides how a call of this kind runs. `args` are the call's arguments; `forward` is the plan of the forward operator
// whose gradient is being computed, or null.
std::unique_ptr<CallPlan> make_call_plan(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args,
                                         const CallPlan* forward);

// Operators with a kernel of their own (reading a value, drawing random numbers, results whose size depends on data, tensor lists without rules).
using SpecialKernel = void (*)(RankState& state, const OpInfo& info, torch::jit::Stack& stack);
SpecialKernel find_special(const std::string& op);

// Throws in explicit mode (warns in kWarn) if the plan moves operands, which the program did not write; shows the line to write.
void check_explicit(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args, const CallPlan& plan);
// The same for one move; `argument` names what would be moved.
void check_explicit(const RankState& state, const std::string& call, const std::string& argument, const Move& move);

// The part of a DTensor under other placements, for special kernels; throws as check_explicit does. A Partial is merged for good:
// the value stays the same.
at::Tensor part_at(RankState& state, const OpInfo& info, const at::Tensor& tensor, const layout::Placements& placements);

// Calls `visit(tensor, index of the argument, index in a list or -1)` for every defined tensor among the arguments.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> args, Visit&& visit) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = args[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor(), static_cast<int>(i), -1);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (size_t k = 0; k < list.size(); ++k) visit(list.get(k), static_cast<int>(i), static_cast<int>(k));
    } else if (value.isList() && value.toListRef().size() > 0) {
      const auto items = value.toListRef();  // List[Optional[Tensor]]
      for (size_t k = 0; k < items.size(); ++k) {
        if (items[k].isTensor() && items[k].toTensor().defined()) visit(items[k].toTensor(), static_cast<int>(i), static_cast<int>(k));
      }
    }
  }
}

// Replaces one tensor among the arguments.
void replace_tensor(c10::IValue& arg, int item, at::Tensor tensor);

// The key under which a rank's thread is intercepted (Note [Interception]).
constexpr c10::DispatchKey kIntercept = c10::DispatchKey::DeferredInit;

// While it lives, factories and random operators on plain tensors are the local kernels' own and are not intercepted.
class LocalScope {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{kIntercept};
};

}  // namespace tessera::dtensor
