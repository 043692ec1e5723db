#include "tessera/dtensor/front/group_gradients.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/move/joined_moves.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using torch::autograd::variable_list;

constexpr const char* kCaller = "gradients";

const ParameterInfo& info_of(const at::Tensor& parameter) { return *meta_of(parameter)->parameter; }

}  // namespace

bool merges_in_pass(const at::Tensor& parameter) {
  return is_dtensor(parameter) && meta_of(parameter)->parameter && info_of(parameter).gather &&
         !info_of(parameter).gather->merged.empty();
}

bool merges_in_group(const at::Tensor& parameter) {
  if (!merges_in_pass(parameter) || !info_of(parameter).group) {
    return false;
  }
  const GatherPolicy& policy = *info_of(parameter).gather;
  return std::includes(policy.merged.begin(), policy.merged.end(), policy.read.begin(), policy.read.end());
}

at::Tensor without_base(const at::Tensor& gradient) {
  at::Tensor result = gradient.variable_data();
  drop_unseen_base(*meta_of(result));
  return result;
}

void let_go_of_bases(std::vector<at::Tensor>& gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined() && is_dtensor(gradient)) {
      gradient = without_base(gradient);
    }
  }
}

namespace {

// Merged over all axes of its policy that it is not merged over yet.
at::Tensor merged_alone(RankState& state, const at::Tensor& parameter, at::Tensor gradient) {
  const Meta& found = *meta_of(gradient);
  const Spec wanted = merged_gradient(found.spec, meta_of(parameter)->spec, *info_of(parameter).gather);
  if (found.spec == wanted) {
    return gradient;
  }
  const at::NoGradGuard no_grad;
  const Spec to = wanted.with_dtype(found.spec->dtype);
  const MovePtr move = state.engine.moves.find_or_plan(found.spec, to);
  return wrap(run_move(state.ctx, *move, found.local, kCaller), to, found.origin);
}

// The same of those of a group, what is alike together; undefined ones are left alone.
void merge_rest(RankState& state, const GatherGroup& group, std::vector<at::Tensor>& gradients) {
  std::vector<size_t> moved;
  std::vector<MovePtr> moves;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      continue;
    }
    const at::Tensor parameter = group.parameter(i);
    const Meta& found = *meta_of(gradients[i]);
    const Spec wanted = merged_gradient(found.spec, meta_of(parameter)->spec, *info_of(parameter).gather);
    if (const Spec to = wanted.with_dtype(found.spec->dtype); found.spec != to) {
      moved.push_back(i), parts.push_back(found.local);
      moves.push_back(state.engine.moves.find_or_plan(found.spec, to));
    }
  }
  const auto merged = run_moves(state.ctx, moves, std::move(parts), kGroupTogether, kCaller);
  for (size_t k = 0; k < moved.size(); ++k) {
    gradients[moved[k]] = wrap(merged[k], moves[k]->to);
  }
}

// Gives a gradient of this pass to whom it belongs.
void hand_over(RankState& state, const at::Tensor& parameter, at::Tensor gradient) {
  if (state.engine.gradients_aside) {
    state.engine.gradients_aside->emplace_back(meta_of(parameter), std::move(gradient));
    return;
  }
  at::Tensor& sum = parameter.mutable_grad();
  torch::autograd::AccumulateGrad::accumulateGrad(parameter, sum, gradient, /*num_expected_refs=*/1,
                                                  [&](at::Tensor&& first) { sum = std::move(first); });
}

// Merges what was taken of the group.
void merge(RankState& state, GatherGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> waiting = group.release_waiting();
  let_go_of_bases(waiting);
  merge_complete(state, waiting, kGroupTogether, kCaller);
  std::vector<at::Tensor> merged = group.merge_taken(state.ctx, state.engine.moves, kCaller);
  merge_rest(state, group, merged);  // ... over what sequence parallelism cuts
  for (size_t i = 0; i < merged.size(); ++i) {
    if (waiting[i].defined()) {
      hand_over(state, group.parameter(i), std::move(waiting[i]));
    } else if (merged[i].defined()) {
      hand_over(state, group.parameter(i), std::move(merged[i]));
    }
  }
}

// A group that is incomplete when the pass ends is merged then: some parameter took no part in the loss.
void merge_at_end(RankState& state, GatherGroup& group) {
  if (!group.has_taken()) {
    torch::autograd::Engine::get_default_engine().queue_callback([&state, &group] { merge(state, group); });
  }
}

}  // namespace

variable_list merged_in_pass(RankState& state, const at::Tensor& parameter, const variable_list& gradients,
                             bool may_hold) {
  if (!state.is_noted(meta_of(parameter)->spec)) {
    return gradients;  // another walk over the micro-batch has them
  }
  const at::Tensor& gradient = gradients.at(0);
  const ParameterInfo& info = info_of(parameter);
  const bool is_in_group = info.group && info.group->has(info.member, *meta_of(parameter));
  const bool may_wait = is_in_group && info.group->may_take(info.member, gradient);
  if (may_wait && may_hold) {
    merge_at_end(state, *info.group);
    if (info.group->take(info.member, gradient)) {
      merge(state, *info.group);
    }
    return {at::Tensor()};
  }
  if (state.exact.lattice()) {
    merge_complete(state, gradients, kGroupTogether, kCaller);
    return gradients;
  }
  const bool has_left_group = info.group && !is_in_group;
  return {may_wait || has_left_group ? merged_alone(state, parameter, gradient) : gradient};
}

void merge_step(RankState& state, std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  merge_complete(state, gradients, kSmallTogether, kCaller);
  std::vector<size_t> moved;
  std::vector<MovePtr> moves;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || !is_dtensor(gradients[i])) {
      continue;
    }
    const layout::Placements& placements = meta_of(parameters[i])->spec->placements;
    Meta& meta = *meta_of(gradients[i]);
    if (meta.spec->placements == placements) {
      continue;
    }
    if (meta.is_pending()) {
      gradients[i] = redistribute(gradients[i], placements);
    } else {
      moved.push_back(i);
      moves.push_back(state.engine.moves.find_or_plan(meta.spec, meta.spec.with(placements)));
      parts.push_back(meta.local);
      gradients[i].reset();
    }
  }
  const std::vector<at::Tensor> merged = run_moves(state.ctx, moves, std::move(parts), kSmallTogether, kCaller);
  for (size_t k = 0; k < moved.size(); ++k) {
    gradients[moved[k]] = wrap(merged[k], moves[k]->to);
  }
}

}  // namespace tessera::dtensor
