// From the operands of a call to the parts that its local operator reads.
#pragma once

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::dtensor {

// Replaces the tensors on the call's stack by this rank's parts of them, moved to where the plan wants them. Adds those
// that the call writes to `written`, as they came.
void prepare_operands(const Invocation& call, const CallPlan& plan, c10::SmallVectorImpl<at::Tensor>& written);

// Has the value at `to`, other coordinates of axes on which it is On, as `reader` would that reads it there: sent, if
// it is not there.
void send_ahead(RankState& state, const char* reader, Meta& value, const Spec& to);

// Replaces the sizes on the call's stack by those of this rank's results.
inline void rewrite_sizes(const Invocation& call, const CallPlan& plan) {
  for (const auto& [index, value] : plan.rewritten) {
    rules::replace(call.args()[index], value);
  }
}

}  // namespace tessera::dtensor
