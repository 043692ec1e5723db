// Sizes, strides and dtypes of a call's results, as the one-device program would make them.
#pragma once

#include <vector>

#include "tessera/dtensor/plan/call_plan.h"
#include "tessera/dtensor/record/op_info.h"

namespace tessera::dtensor {

// Each adds the results to `call.outputs` (lists element by element), says in `defined` which of them are tensors, and
// gives `plan.list_returns`.

// From the operator itself, run on meta tensors; of operators that only Python can run so, which are elementwise, from
// the first operand.
void infer_outputs(const OpInfo& info, rules::Call& call, CallPlan& plan, std::vector<bool>& defined);

// From the extents of the rule's factors: contiguous, unless they are the first operand's sizes.
void outputs_from_factors(const OpInfo& info, rules::Call& call, const rules::FactorMap& map, CallPlan& plan,
                          std::vector<bool>& defined);

}  // namespace tessera::dtensor
