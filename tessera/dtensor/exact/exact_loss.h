// Mean losses in `exact` numerics: one division by what the step counts.
#pragma once

#include "tessera/dtensor/record/op_info.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

// The exact rule of a reduced nll_loss_forward (what cross_entropy becomes): every token's loss, their sum over
// samples, which waits, and one division by the tokens that count. Those are the step's, announced
// (Exact::step_tokens) or found: the targets of a batch that is the whole step, or all tokens of the step if none
// of this micro-batch is ignored. And that of mse_loss_backward, whose elements are the step's. Null for other calls.
const rules::ExactRule* find_exact_loss(const OpInfo& info, const rules::Call& call);

}  // namespace tessera::dtensor
