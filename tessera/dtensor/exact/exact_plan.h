// What `exact` numerics change in the plan of a call.
#pragma once

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/engine/propagate.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

// The exact rule of the call. Throws, naming the operator, if it has none.
const rules::ExactRule* exact_rule_of(const RankState& state, const OpInfo& info, const rules::Call& call);

// Forbids `map` the cuts that have no exact form and need none: what is summed whole, and all but samples where the
// kernel runs for each sample (then how it does; otherwise null).
std::unique_ptr<PerSample> restrict_cuts(const RankState& state, const rules::ExactRule& rule, const rules::Call& call,
                                         rules::FactorMap& map);

// Completes a plan whose outputs are as `decided`: no Partial leaves a call. Sums are merged at once, into the layout
// that the plan wants or that of the forward operand; those over samples wait in a handle laid out as the parameter.
void plan_exact(RankState& state, const OpInfo& info, const rules::Call& call, const rules::ExactRule& rule,
                const rules::FactorMap& map, const rules::Propagation& decided, const CallPlan* forward,
                CallPlan& plan);

// Throws if `a + b`, of equal sizes, would add samples of one micro-batch to those of another, or to a gradient that
// waits for them: the gradient of what libtorch did not spread over samples, as there was one only. And if it would add
// gradients of two micro-batches whose samples nobody knows.
void check_samples_apart(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace tessera::dtensor
