// How a call runs, decided at the first one of its kind.
#pragma once

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// How the call runs: as decided at the first one of its kind. The rank's; see PlanCache for how long it stays.
CallPlan& plan_of(const Invocation& call);

}  // namespace tessera::dtensor
