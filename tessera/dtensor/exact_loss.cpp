#include "tessera/dtensor/exact_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/any.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/sum.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/state.h"
#include "tessera/rules/local_args.h"

namespace tessera::dtensor {

namespace {

// Tokens of the whole step, by the labels of the micro-batch's targets; 0 if it is the whole step.
int64_t tokens_of_step(const at::Tensor& target) {
  int64_t tokens = target.numel();
  if (!is_dtensor(target) || meta_of(target)->spec->labels.empty()) return 0;
  for (const layout::DimLabels& dim : meta_of(target)->spec->labels) {
    for (const layout::Factor& factor : dim) {
      if (factor.label == layout::Label::kBatch && factor.extent != factor.total) return tokens / factor.extent * factor.total;
    }
  }
  return 0;
}

int64_t count_of(const at::Tensor& target, int64_t ignored) {
  const RankState& state = RankState::require();
  if (state.step_tokens > 0) return state.step_tokens;
  const int64_t of_step = tokens_of_step(target);
  if (of_step == 0) return at::sum(at::ne(target, ignored)).item<int64_t>();
  TESSERA_CHECK(!at::any(at::eq(target, ignored)).item<bool>(), "[nll_loss] numerics exact: targets are ignored in a micro-batch, so the tokens that the "
                "step's mean divides by are not known before its last one (rank ", state.ctx.rank, "). Announce them: ",
                base::in_language("job.set_step_tokens(n);", "tessera.set_step_tokens(n)"), ", or use accumulate = 1.");
  return of_step;
}

void decompose(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  rules::StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self"), target = args.tensor("target");
  const bool is_mean = args["reduction"].toInt() == at::Reduction::Mean;
  const int64_t ignored = args["ignore_index"].toInt();
  const at::Tensor each = std::get<0>(at::nll_loss_forward(self, target, {}, at::Reduction::None, ignored));
  const int64_t count = count_of(target, ignored);
  const at::Tensor total = at::sum(each);
  const at::Tensor weight = at::full_like(total, static_cast<double>(count));
  args.give(is_mean ? at::div(total, at::Scalar(static_cast<double>(count))) : total, weight);
}

bool is_reduced(const rules::Call& call) { return call.integer("reduction") != at::Reduction::None && call.operand_of("weight") < 0; }

}  // namespace

const rules::ExactRule* find_exact_loss(const rules::Call& call) {
  static const rules::ExactRule rule = {.decompose = decompose};
  return call.name == "aten::nll_loss_forward" && is_reduced(call) ? &rule : nullptr;
}

}  // namespace tessera::dtensor
