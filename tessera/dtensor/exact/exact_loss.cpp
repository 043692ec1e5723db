#include "tessera/dtensor/exact/exact_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/any.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/sum.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/exact/part_means.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::dtensor {

namespace {

// The tokens that the step's mean divides by.
int64_t count_of(const at::Tensor& scores, const at::Tensor& target, int64_t ignored) {
  const RankState& state = RankState::require();
  if (state.exact.step_tokens() > 0) {
    return state.exact.step_tokens();
  }
  const auto of_target = share_of_step(target), share = of_target ? of_target : share_of_step(scores);
  if (!share) {
    return at::sum(at::ne(target, ignored)).item<int64_t>();
  }
  TESSERA_CHECK(!at::any(at::eq(target, ignored)).item<bool>(),
                "[nll_loss] numerics exact: targets are ignored in a micro-batch, so the tokens that the "
                "step's mean divides by are not known before its last one (rank ",
                state.ctx.rank,
                "). Announce them: ", base::in_language("job.set_step_tokens(n);", "tessera.set_step_tokens(n)"),
                ", or use accumulate = 1.");
  return share->of_step(target.numel());
}

void decompose(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  rules::StackArgs args(op, stack);
  const at::Tensor scores = args.tensor("self"), self = rules::widened(scores), target = args.tensor("target");
  const bool is_mean = args["reduction"].toInt() == at::Reduction::Mean;
  const int64_t ignored = args["ignore_index"].toInt();
  const at::Tensor each = std::get<0>(at::nll_loss_forward(self, target, {}, at::Reduction::None, ignored));
  const int64_t count = count_of(self, target, ignored);
  const at::Tensor total = at::sum(each);
  const at::Tensor weight = at::full_like(total, static_cast<double>(count));
  const at::Tensor loss = is_mean ? at::div(total, at::Scalar(static_cast<double>(count))) : total;
  args.give(loss.to(scores.scalar_type()), weight.to(scores.scalar_type()));
}

// Of the mean of squares: 2 / n for each of the step's n elements.
void decompose_squares_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  rules::StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self"),
                   difference = rules::widened(self) - rules::widened(args.tensor("target"));
  const auto share = share_of_step(difference);
  const double scale = 2.0 / static_cast<double>(share ? share->of_step(difference.numel()) : difference.numel());
  const at::Tensor grad = at::mul(at::mul(difference, scale), rules::widened(args.tensor("grad_output")));
  args.give_value(grad.to(self.scalar_type()));
}

bool is_reduced(const rules::Call& call) {
  return call.integer("reduction") != at::Reduction::None && call.operand_of("weight") < 0;
}

}  // namespace

const rules::ExactRule* find_exact_loss(const OpInfo& info, const rules::Call& call) {
  static const rules::ExactRule of_scores = {.decompose = decompose},
                                of_squares = {.decompose = decompose_squares_backward};
  switch (info.row.step_loss) {
    case rules::StepLoss::kScores: return is_reduced(call) ? &of_scores : nullptr;
    case rules::StepLoss::kSquaresBackward:
      return call.integer("reduction") == at::Reduction::Mean ? &of_squares : nullptr;
    case rules::StepLoss::kNone: break;
  }
  return nullptr;
}

}  // namespace tessera::dtensor
