// How a call runs, decided at the first one of its kind.
#pragma once

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// How the call runs: as decided at the first one of its kind. The rank's; see PlanCache for how long it stays.
CallPlan& plan_of(const Invocation& call);

// Throws in explicit mode (warns in kWarn) if the plan moves operands, which the program did not write; shows the line
// to write.
void check_explicit(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args, const CallPlan& plan);

}  // namespace tessera::dtensor
