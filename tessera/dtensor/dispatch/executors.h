// The ways in which a planned call runs.
#pragma once

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// What the plan ends in (CallPlan::execute): chosen once, when all else of it is decided.
Executor executor_of(const CallPlan& plan);

}  // namespace tessera::dtensor
