// Calls that sum over samples of the step, in `exact` numerics.
#pragma once

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"

namespace tessera::dtensor {

// Runs a call whose plan has a SamplePlan: its result is a handle that waits (Note [Pending]), with a value only where
// it will be differentiated again.
void run_sample_sum(Invocation& call, const CallPlan& plan);

}  // namespace tessera::dtensor
