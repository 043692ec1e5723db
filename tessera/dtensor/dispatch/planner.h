// How a call runs, decided at the first one of its kind.
#pragma once

#include <memory>

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Decides how a call of this kind runs. `args` are the call's arguments; `forward` is the plan of the forward operator
// whose gradient is being computed, or null.
std::unique_ptr<CallPlan> make_call_plan(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args,
                                         const CallPlan* forward);

// Throws in explicit mode (warns in kWarn) if the plan moves operands, which the program did not write; shows the line
// to write.
void check_explicit(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args, const CallPlan& plan);

}  // namespace tessera::dtensor
