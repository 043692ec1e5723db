#include "tessera/dtensor/front/group_gradients.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/move/joined_moves.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

constexpr const char* kCaller = "gradients";

const ParameterInfo& info_of(const at::Tensor& parameter) { return *meta_of(parameter)->parameter; }

bool merges_in_pass(const at::Tensor& parameter) {
  return is_dtensor(parameter) && meta_of(parameter)->parameter && info_of(parameter).gather &&
         !info_of(parameter).gather->merged.empty();
}

// ... over the axes that a group gathers.
bool merges_in_group(const at::Tensor& parameter) {
  if (!merges_in_pass(parameter) || !info_of(parameter).group) {
    return false;
  }
  const GatherPolicy& policy = *info_of(parameter).gather;
  return std::includes(policy.merged.begin(), policy.merged.end(), policy.read.begin(), policy.read.end());
}

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

// A gradient that is a view of another (of the product that a transposition follows) would keep that one and its sums.
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

// Those that nobody else waits for.
struct OwnHook : torch::autograd::FunctionPreHook {};

// Stands before a parameter's end of the graph, where the sum over its uses arrives.
struct TakeGradient final : OwnHook {
  explicit TakeGradient(const at::Tensor& leaf) : parameter(leaf.getIntrusivePtr()), placed(&info_of(leaf)) {}

  variable_list operator()(const variable_list& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    RankState* state = RankState::current();
    const auto alive = parameter.lock();
    if (!state || !alive || !gradient.defined() || !is_dtensor(gradient) || at::GradMode::is_enabled()) {
      return gradients;
    }
    const at::Tensor leaf(alive);
    if (!meta_of(leaf)->parameter) {  // the program gave it other data since
      meta_of(leaf)->parameter = placed;
    }
    if (!state->is_noted(meta_of(leaf)->spec)) {
      return gradients;  // another walk over the micro-batch has them
    }
    const ParameterInfo& info = info_of(leaf);
    const bool is_in_group = info.group && info.group->has(info.member, *meta_of(leaf));
    const bool may_wait = is_in_group && info.group->may_take(info.member, gradient);
    if (may_wait && (state->engine.gradients_aside || is_unheard(leaf))) {
      merge_at_end(*state, *info.group);
      if (info.group->take(info.member, gradient)) {
        merge(*state, *info.group);
      }
      return {at::Tensor()};
    }
    if (state->exact.lattice()) {
      merge_complete(*state, gradients, kGroupTogether, kCaller);
      return gradients;
    }
    const bool has_left_group = info.group && !is_in_group;
    return {may_wait || has_left_group ? merged_alone(*state, leaf, gradient) : gradient};
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  const ParameterInfo* placed;
};

// Stands there too, where gradients are merged once a step: a first one in another order of memory (that of a view that
// is transposed) would be copied by libtorch, which merges it, alone.
struct KeepSum final : OwnHook {
  explicit KeepSum(const at::Tensor& leaf) : parameter(leaf.getIntrusivePtr()) {}

  variable_list operator()(const variable_list& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    const RankState* state = RankState::current();
    const auto alive = parameter.lock();
    if (!state || state->exact.lattice() || !alive || !gradient.defined() || !is_dtensor(gradient) ||
        !meta_of(gradient)->spec->has_partial || at::GradMode::is_enabled()) {
      return gradients;
    }
    const at::Tensor leaf(alive);
    const bool is_copied = leaf.is_contiguous() && !gradient.is_contiguous() && !leaf.grad().defined();
    return {is_copied ? gradient.contiguous() : gradient};
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
};

// Stands there in the passes of a step: what is complete goes to whoever adds up the passes' gradients.
struct HandOn final : torch::autograd::FunctionPreHook {
  HandOn(size_t parameter, const TakesGradient& to) : index(parameter), takes(to) {}

  variable_list operator()(const variable_list& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    if (!gradient.defined() || !is_dtensor(gradient)) {
      return gradients;
    }
    const bool is_handle = meta_of(gradient)->is_pending();
    return {takes(index, is_handle ? gradient : without_base(gradient)) ? at::Tensor() : gradient};
  }

  size_t index;
  const TakesGradient& takes;
};

// Before those of the program, which then see what is merged. libtorch's own call is for tensors without hooks.
void add_hook(const at::Tensor& parameter, std::unique_ptr<torch::autograd::FunctionPreHook> hook) {
  auto& hooks = impl::hooks(parameter);
  hooks.insert(hooks.begin(), std::move(hook));
}

}  // namespace

bool is_unheard(const at::Tensor& parameter) {
  const auto& hooks = impl::hooks(parameter);
  const auto end = impl::try_get_grad_accumulator(parameter);
  return torch::autograd::get_current_graph_task_exec_info()->empty() && !impl::post_acc_grad_hooks(parameter) &&
         std::all_of(hooks.begin(), hooks.end(),
                     [](const auto& hook) { return dynamic_cast<const OwnHook*>(hook.get()) != nullptr; }) &&
         (!end || (end->pre_hooks().empty() && end->post_hooks().empty()));
}

void merge_in_each_pass(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) {
      continue;
    }
    if (!merges_in_pass(parameter)) {
      add_hook(parameter, std::make_unique<KeepSum>(parameter));
      continue;
    }
    if (merges_in_group(parameter)) {
      info_of(parameter).group->expect_gradient(info_of(parameter).member, parameter);
    }
    add_hook(parameter, std::make_unique<TakeGradient>(parameter));
  }
}

GradientsAside::GradientsAside(RankState& state, const std::vector<at::Tensor>& parameters, PassMerges merges,
                               TakesGradient takes)
    : state_(state), parameters_(parameters), takes_(std::move(takes)), without_hooks_(parameters) {
  TESSERA_ASSERT(!state.engine.gradients_aside);
  state.engine.gradients_aside = &aside_;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (merges == PassMerges::kAll && merges_in_pass(parameters[i])) {
      add_hook(parameters[i], std::make_unique<TakeGradient>(parameters[i]));
    } else if (!state.exact.lattice()) {
      add_hook(parameters[i], std::make_unique<HandOn>(i, takes_));
    }
  }
}

GradientsAside::~GradientsAside() { state_.engine.gradients_aside = nullptr; }

std::vector<at::Tensor> GradientsAside::with(std::vector<at::Tensor> gradients) {
  std::unordered_map<const Meta*, at::Tensor> aside(aside_.begin(), aside_.end());
  for (size_t i = 0; i < parameters_.size() && !aside.empty(); ++i) {
    if (const auto found = is_dtensor(parameters_[i]) ? aside.find(meta_of(parameters_[i])) : aside.end();
        found != aside.end()) {
      gradients[i] = std::move(found->second);
    }
  }
  let_go_of_bases(gradients);
  return gradients;
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
