// What is wanted of a call's operands and results, from outside of its rule: by the plan, and by the forward call.
#pragma once

#include <optional>

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/rules/engine/propagate.h"

namespace tessera::dtensor {

// What the forward value's layout asks of a gradient: a Partial is merged into the layout of the forward result, and a
// parameter's gradient is cut as the parameter is. No wishes if there is no forward plan.
rules::Wishes wishes_of(const rules::Call& call, const CallPlan* forward);

// Which operand of the forward call a tensor of these sizes is the gradient of, if it is that of a parameter: the only
// one of its sizes.
std::optional<size_t> parameter_of_gradient(const CallPlan& forward, c10::IntArrayRef sizes);

// The parameter whose wishes the call should meet: one that reads labelled activations beside it, as a model does. An
// optimizer, which reads parameters with gradients and moments, is none of the plan's business. Null if there is none.
const ParameterInfo* wanting_parameter(c10::ArrayRef<c10::IValue> args);

// `spec` laid out as the plan wants; where the tensor is cut along the dim already it keeps its cuts, uneven
// micro-batches above all. A wish for dims that the tensor lacks changes nothing.
layout::Spec with_wish(const layout::Spec& spec, layout::Placements wants);

}  // namespace tessera::dtensor
