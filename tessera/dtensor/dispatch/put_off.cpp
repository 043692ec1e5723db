#include "tessera/dtensor/dispatch/put_off.h"

#include <optional>
#include <utility>

#include "tessera/dtensor/dispatch/add_in_kernel.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

bool is_put_off(const Invocation& call, const CallPlan& plan) {
  const comm::PutsOff what = call.state->ctx.walk.puts_off;
  return what != comm::PutsOff::kNothing && plan.makes_parameter_gradient && !plan.is_absent &&
         !at::GradMode::is_enabled() &&
         (what == comm::PutsOff::kWeights || (may_add_in_kernel(call.info, plan) && !call.state->watch.observer()));
}

std::shared_ptr<LateCall> put_off(const Invocation& call, const CallPlan& plan, LateCall::Body body) {
  const bool takes_all_threads = plan.is_long && (call.flags & kExact);  // as in its pass
  return std::make_shared<LateCall>(
      [shared = plan.shared_from_this(), takes_all_threads, body = std::move(body)](const at::Tensor* onto) {
        const at::NoGradGuard no_grad;
        const LocalScope scope;
        std::optional<kernels::AllThreads> threads;
        if (takes_all_threads) {
          threads.emplace();
        }
        return body(onto);
      });
}

}  // namespace tessera::dtensor
