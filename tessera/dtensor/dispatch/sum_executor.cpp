#include "tessera/dtensor/dispatch/sum_executor.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/dtensor/dispatch/operands.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

// In a derivative a forward call may have several sums, in several passes.
uint64_t use_of_sum(const Invocation& call) {
  return call.is_in_derivative() ? call.state->pass.sites.use_of_sum(
                                       call.use, torch::autograd::get_current_graph_task_id(), call.node->sequence_nr())
                                 : call.use;
}

// The sum so far, if an earlier micro-batch of the step began it.
SampleSum earlier_or_new(RankState& state, uint64_t use, const SamplePlan& plan) {
  std::optional<SampleSum> earlier =
      state.exact.continuation() ? state.exact.continuation()->take(use, plan) : std::nullopt;
  return earlier ? std::move(*earlier) : SampleSum(plan);
}

}  // namespace

void run_sample_sum(Invocation& call, const CallPlan& plan) {
  RankState& state = *call.state;
  const SamplePlan& samples = *plan.exact->sample;
  c10::SmallVector<at::Tensor, 0> written;
  prepare_operands(call, plan, written);
  rewrite_sizes(call, plan);
  const uint64_t use = use_of_sum(call);
  {
    const LocalScope scope;
    const layout::Coord& coord = state.ctx.coord(samples.terms->mesh);
    const auto options = call.args()[samples.operands.at(0).arg].toTensor().options().dtype(samples.terms->dtype);
    const at::Tensor like = at::zeros({}, options).expand(samples.terms.local_sizes(coord));
    auto pending = std::make_shared<Pending>();
    Pending::Group& group = pending->groups.emplace_back();
    group.spec = plan.outputs.at(0).final_spec;
    if (!plan.is_absent || state.is_noted(samples.terms)) {
      SampleSum sum = earlier_or_new(state, use, samples);
      const uint64_t number = state.exact.next_sum();
      plan.is_absent ? sum.note(samples, number, call.scan.origin, like)
                     : sum.add(*plan.exact, number, call.scan.origin, call.arguments(), like);
      group.uses.emplace(use, std::move(sum));
    }
    torch::jit::drop(call.stack, call.info.num_args());
    call.stack.emplace_back(make_handle(group.spec, options, coord, pending));
  }
  if (call.is_in_derivative() && at::GradMode::is_enabled()) {
    settle_for_good(state, *meta_of(call.stack.back().toTensor()), call.info.name.c_str());
  }
}

}  // namespace tessera::dtensor
