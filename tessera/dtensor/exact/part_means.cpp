#include "tessera/dtensor/exact/part_means.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::autograd::variable_list;
using torch::jit::Stack;

// While it lives, means are shares of the step's: of what a mean is made of.
class Inside {
 public:
  explicit Inside(RankState& state) : state_(state), before_(state.pass.set_means_as_shares(true)) {}
  ~Inside() { state_.pass.set_means_as_shares(before_); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  RankState& state_;
  bool before_;
};

std::string undivided(const RankState& state, int64_t parts) {
  return c10::str("[backward] accumulate=", parts, ": this loss is the mean of one of the step's ", parts,
                  " micro-batches and is not divided by them, so the "
                  "step's gradient would be ",
                  parts, " times that of its mean (rank ", state.ctx.rank, "). Write ", "(loss / ", parts,
                  base::in_language(").backward();", ").backward()"), ", as in plain PyTorch's loop.");
}

// The gradient of the step's mean, of which `share` is that of the mean of one of `parts`.
at::Tensor gradient_of_step(const at::Tensor& share, int64_t parts) {
  const RankState& state = RankState::require();
  const double value = share.item().toDouble();
  TESSERA_CHECK(value != 1, undivided(state, parts));
  if (std::has_single_bit(static_cast<uint64_t>(parts))) {
    return at::mul(share, parts);
  }
  const auto whole = whole_of_share(value, parts, share.scalar_type());
  TESSERA_CHECK(whole && !at::GradMode::is_enabled(),
                "[backward] numerics exact: the gradient of the mean of one of the step's ", parts,
                " micro-batches is ", value,
                ", of which no exact whole is known: it would round otherwise than that of the whole step (rank ",
                state.ctx.rank, "). Accepted: 1/", parts, ", or a power of two times that, as (loss / ", parts,
                ").backward() gives; weighted losses and create_graph need 2, 4, 8, ... micro-batches.");
  return at::full_like(share, *whole);
}

// Of a micro-batch's mean, as `parts` times its share.
struct PartMeanBackward final : torch::autograd::Node {
  int64_t parts = 1;

  variable_list apply(variable_list&& grads) override {
    return {grads.at(0).defined() ? gradient_of_step(grads[0], parts) : at::Tensor()};
  }
  std::string name() const override { return "PartMeanBackward"; }
};

at::Tensor times(const at::Tensor& share, int64_t parts) {
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = at::mul(share, parts);
  }
  if (!at::GradMode::is_enabled() || !share.requires_grad()) {
    return result;
  }
  auto node = make_node<PartMeanBackward>();
  node->parts = parts;
  node->set_next_edges(torch::autograd::collect_next_edges(share));
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

// In `fast`: the loop is plain PyTorch's already.
void watch(const at::Tensor& mean, int64_t parts) {
  if (!mean.requires_grad()) {
    return;
  }
  mean.register_hook([parts](const at::Tensor& grad) {
    RankState* state = RankState::current();
    if (state && !state->pass.means().told_undivided && grad.item().toDouble() == 1) {
      state->pass.tell_undivided();
      TORCH_WARN(undivided(*state, parts));
    }
  });
}

// The dims that the mean is over; nothing if it is over all.
std::vector<int64_t> mean_dims(rules::StackArgs& args) {
  return args.has("dim") && !args["dim"].isNone() ? args["dim"].toIntVector() : std::vector<int64_t>();
}

// Whether a mean may be over some of the step's samples.
bool has_parts(const RankState& state) {
  const StepMeans& means = state.pass.means();
  return means.parts > 1 || (means.in_job && state.exact.lattice());
}

// The samples that a mean to a single number is over, if they are some of the step's.
std::optional<StepShare> part_of_mean(rules::StackArgs& args) {
  const at::Tensor self = args.tensor("self");
  const auto share = share_of_step(self);
  if (!share) {
    return std::nullopt;
  }
  const std::vector<int64_t> dims = mean_dims(args);
  const auto keeps = [&](int64_t d) {
    return !dims.empty() && std::none_of(dims.begin(), dims.end(),
                                         [&](int64_t dim) { return c10::maybe_wrap_dim(dim, self.dim()) == d; });
  };
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (keeps(d) && (d == share->dim || self.size(d) != 1)) {
      return std::nullopt;
    }
  }
  return share;
}

// Its share of the step's mean.
at::Tensor mean_share(rules::StackArgs& args, const StepShare& share) {
  const at::Tensor self = args.tensor("self");
  const bool keeps = args.has("keepdim") && args["keepdim"].toBool();
  const auto dtype = args["dtype"].toOptional<c10::ScalarType>();
  const at::Tensor sum = at::sum(rules::widened(self), mean_dims(args), keeps, dtype);
  return at::div(sum, share.of_step(self.numel())).to(dtype.value_or(self.scalar_type()));
}

void mean(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  RankState* state = RankState::current();
  if (!state || !has_parts(*state)) {
    return call_below(op, keys, stack);
  }
  rules::StackArgs args(op, *stack);
  const auto share = part_of_mean(args);
  if (!share) {
    return call_below(op, keys, stack);
  }
  if (!state->exact.lattice()) {
    call_below(op, keys, stack);
    return state->pass.means().as_shares ? void() : watch(stack->back().toTensor(), share->parts());
  }
  const at::Tensor of_step = mean_share(args, *share);
  args.give_value(state->pass.means().as_shares ? of_step : times(of_step, share->parts()));
}

// The samples that a loss is the mean of, if they are some of the step's.
std::optional<StepShare> part_of_loss(rules::StackArgs&& args) {
  if (args["reduction"].toInt() != at::Reduction::Mean) {
    return std::nullopt;
  }
  const auto share = share_of_step(args.tensor("self"));
  return share ? share : share_of_step(args.tensor("target"));
}

// A loss whose `reduction` may be a mean. `exact` has some; what others are made of comes here by itself.
void loss_of(bool is_of_means, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  RankState* state = RankState::current();
  if (!state || state->pass.means().parts == 1 || state->pass.means().as_shares) {
    return call_below(op, keys, stack);
  }
  const bool has_exact_parts = state->exact.lattice() && is_of_means;
  const auto share = has_exact_parts ? std::nullopt : part_of_loss(rules::StackArgs(op, *stack));
  if (!share) {
    return call_below(op, keys, stack);
  }
  {
    const Inside inside(*state);
    call_below(op, keys, stack);
  }
  IValue& result = stack->back();
  if (!state->exact.lattice()) {
    return watch(result.toTensor(), share->parts());
  }
  rules::replace(result, times(result.toTensor(), share->parts()));
}

void loss(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  loss_of(/*is_of_means=*/false, op, keys, stack);
}

// In `exact` its parts are means.
void cross_entropy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  loss_of(/*is_of_means=*/true, op, keys, stack);
}

}  // namespace

std::optional<StepShare> share_of_step(const at::Tensor& tensor) {
  const RankState* state = RankState::current();
  if (!state || !is_dtensor(tensor) || !meta_of(tensor)->spec) {
    return std::nullopt;
  }
  const layout::Labels& labels = meta_of(tensor)->spec->labels;
  const StepMeans& means = state->pass.means();
  // Else they may say that the program took some of its pass.
  const bool by_labels = means.in_job || means.samples == 0;
  for (size_t d = 0; d < labels.size(); ++d) {
    for (const layout::Factor& factor : labels[d]) {
      if (factor.label != layout::Label::kBatch || factor.extent == factor.total || factor.extent == 0) {
        continue;
      }
      const auto dim = static_cast<int64_t>(d);
      if (by_labels) {
        return StepShare{dim, factor.extent, factor.total};
      }
      if (means.parts > 1 && factor.total == means.samples) {
        return StepShare{dim, 1, means.parts};
      }
    }
  }
  return std::nullopt;
}

std::optional<double> whole_of_share(double share, int64_t parts, c10::ScalarType dtype) {
  if (share == 0 || !std::isfinite(share)) {
    return share == 0 ? std::optional(share) : std::nullopt;
  }
  const double whole =
      std::copysign(std::exp2(std::round(std::log2(std::abs(share) * static_cast<double>(parts)))), share);
  const float in_float = static_cast<float>(whole) / static_cast<float>(parts);
  const double rounded = dtype == c10::ScalarType::Float      ? in_float
                         : dtype == c10::ScalarType::BFloat16 ? static_cast<float>(c10::BFloat16(in_float))
                         : dtype == c10::ScalarType::Half     ? static_cast<float>(c10::Half(in_float))
                                                              : whole / static_cast<double>(parts);
  return rounded == share ? std::optional(whole) : std::nullopt;
}

void register_part_means(KernelRegistry& registry) {
  using rules::Caught;
  registry.intercept<&mean>(Caught::kMean);
  registry.intercept<&loss>(Caught::kLoss);
  registry.intercept<&cross_entropy>(Caught::kCrossEntropy);
}

}  // namespace tessera::dtensor
