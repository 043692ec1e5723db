// Calls that are more than finding a plan and running it.
#pragma once

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"

namespace tessera::dtensor {

// A call with any of the flags of kSlow, from its scan to its results.
void dispatch_slowly(Invocation& call);

// The rest of a call whose plan is known: one on trial, one that decomposes, or that of a slow call.
void run_slowly(Invocation& call, CallPlan& plan);

}  // namespace tessera::dtensor
