#include "tessera/dtensor/dispatch/sum_executor.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/dtensor/dispatch/operands.h"
#include "tessera/dtensor/dispatch/put_off.h"
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

// What a call adds to its sum beside its operands.
struct Terms {
  uint64_t use, number;
  const Origin* origin;
  at::Tensor like;
};

SampleSum with_terms(RankState& state, const CallPlan& plan, const Terms& terms, c10::ArrayRef<c10::IValue> args) {
  const SamplePlan& samples = *plan.exact->sample;
  SampleSum sum = earlier_or_new(state, terms.use, samples);
  plan.is_absent ? sum.note(samples, terms.number, terms.origin, terms.like)
                 : sum.add(*plan.exact, terms.number, terms.origin, args, terms.like);
  return sum;
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
    const Terms terms{use, state.exact.next_sum(), call.scan.origin, like};
    if (plan.is_absent && !state.is_noted(samples.terms)) {
      SampleSum& sum = group.uses.emplace(use, SampleSum(samples)).first->second;
      sum.note_elsewhere(samples, terms.number, terms.origin, terms.like);
    } else if (is_put_off(call, plan)) {
      group.late_uses.emplace(
          use, put_off(call, plan, [&state, &plan, terms, args = call.arguments().vec()](const at::Tensor*) {
            return LateCall::Result{.sum = with_terms(state, plan, terms, args)};
          }));
    } else {
      group.uses.emplace(use, with_terms(state, plan, terms, call.arguments()));
    }
    torch::jit::drop(call.stack, call.info.num_args());
    call.stack.emplace_back(make_handle(group.spec, options, coord, pending));
  }
  if (call.is_in_derivative() && at::GradMode::is_enabled()) {
    settle_for_good(state, *meta_of(call.stack.back().toTensor()), call.info.name.c_str());
  }
}

}  // namespace tessera::dtensor
