#include "tessera/dtensor/dispatch/dispatch.h"

#include <ATen/SequenceNumber.h>

#include "tessera/dtensor/dispatch/invocation.h"
#include "tessera/dtensor/dispatch/planner.h"
#include "tessera/dtensor/dispatch/slow_path.h"

namespace tessera::dtensor {

// What a mode or a technique needs of a call is decided when it is planned (CallPlan::execute), or makes it slow
// (CallFlag): nothing more is asked here.
void dispatch(const OpInfo& info, torch::jit::Stack& stack) {
  Invocation call(info, stack);
  if (C10_UNLIKELY(call.flags & kSlow)) {
    return dispatch_slowly(call);
  }
  if (info.special) {
    if (call.flags & kElsewhere) {
      return dispatch_slowly(call);
    }
    call.place();
    return info.special(*call.state, info, stack);
  }
  call.place();
  CallPlan& plan = plan_of(call);
  if (C10_UNLIKELY(plan.is_slow())) {
    return run_slowly(call, plan);
  }
  call.state->ctx.program.note(info.name.c_str(), plan.program_key);
  plan.execute(call, plan);
  call.state->engine.forward_plans.record(at::sequence_number::peek() - 1, plan, call.use);
}

}  // namespace tessera::dtensor
