// Calls of a backward pass that may come later.
#pragma once

#include <memory>

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/exact/late_call.h"
#include "tessera/dtensor/plan/call_plan.h"

namespace tessera::dtensor {

// Whether this call is put off, as the walk says: of those that make a parameter's gradient.
bool is_put_off(const Invocation& call, const CallPlan& plan);

// The rest of a call, whose operands have been moved. `body` may read the plan, which is held as long.
std::shared_ptr<LateCall> put_off(const Invocation& call, const CallPlan& plan, LateCall::Body body);

}  // namespace tessera::dtensor
