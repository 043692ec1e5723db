#include "tessera/dtensor/front/gradients_aside.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/group_gradients.h"

namespace tessera::dtensor {

using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

// What the passes of a step do. Hooks share it, and keep that of the last step.
struct PassesOfStep {
  const TakesGradient takes;
  bool runs_pass = false;
  std::vector<at::Tensor> gradients = {};  // of the pass that runs, by parameter; those that nobody took

  void put_aside(size_t parameter, const at::Tensor& gradient) {
    at::Tensor& sum = gradients.at(parameter);
    sum = sum.defined() ? sum.add(gradient) : gradient;  // twice: of a pass within a node of this one
  }
};

namespace {

// A first gradient in another order of memory than its parameter (that of a view that is transposed) would be copied by
// libtorch, which merges it, alone: where gradients are merged once a step it is copied before, as it lies.
at::Tensor in_order_of(const at::Tensor& leaf, const at::Tensor& gradient) {
  const bool is_copied = meta_of(gradient)->spec->has_partial && leaf.is_contiguous() && !gradient.is_contiguous() &&
                         !leaf.grad().defined();
  return is_copied ? gradient.contiguous() : gradient;
}

// Of the node that adds to the parameter's gradient, or behind it.
bool has_hooks_at_end(const at::Tensor& parameter) {
  if (impl::post_acc_grad_hooks(parameter)) {
    return true;
  }
  const auto end = impl::try_get_grad_accumulator(parameter);
  return end && !(end->pre_hooks().empty() && end->post_hooks().empty());
}

// Stands before a parameter's end of the graph, where the sum over its uses arrives, for good: in place of hooks that
// come and go with passes, which other threads' collector of Python's would see half made.
class ParameterHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit ParameterHook(const at::Tensor& leaf)
      : leaf_(leaf.getIntrusivePtr()), placed_(merges_in_pass(leaf) ? meta_of(leaf)->parameter : nullptr) {}

  // The parameter's; made before those of the program, which then see what is merged.
  static ParameterHook& of(const at::Tensor& parameter) {
    auto& hooks = impl::hooks(parameter);
    ParameterHook* found = hooks.empty() ? nullptr : dynamic_cast<ParameterHook*>(hooks.front().get());
    if (!found) {  // libtorch's own call is for tensors without hooks
      auto made = std::make_unique<ParameterHook>(parameter);
      found = made.get();
      hooks.insert(hooks.begin(), std::move(made));
    }
    return *found;
  }

  // In the passes of this step it is the parameter of this index.
  void join(std::shared_ptr<PassesOfStep> step, size_t index, bool merges) {
    step_ = std::move(step);
    index_ = index;
    merges_in_step_ = merges;
  }

  variable_list operator()(const variable_list& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    RankState* state = RankState::current();
    if (!state || !gradient.defined()) {
      return gradients;
    }
    if (step_ && step_->runs_pass) {
      const at::Tensor left = in_step(*state, gradients);
      if (!torch::autograd::get_current_graph_task_exec_info()->empty()) {
        return {left};  // a node of the pass asks for it
      }
      if (left.defined()) {
        step_->put_aside(index_, left);
      }
      return {at::Tensor()};
    }
    const auto alive = leaf_.lock();
    if (!alive || !is_dtensor(gradient) || at::GradMode::is_enabled()) {
      return gradients;
    }
    const at::Tensor leaf(alive);
    if (placed_) {
      return merged(*state, leaf, gradients, is_unheard(leaf));
    }
    return state->exact.lattice() ? gradients : variable_list{in_order_of(leaf, gradient)};
  }

 private:
  // What is complete goes to whoever adds up the passes' gradients; gives what does not.
  at::Tensor in_step(RankState& state, const variable_list& gradients) const {
    const at::Tensor& gradient = gradients.at(0);
    if (!is_dtensor(gradient)) {
      return gradient;
    }
    if (merges_in_step_) {
      return merged(state, at::Tensor(leaf_.lock()), gradients, /*may_hold=*/true).at(0);
    }
    if (state.exact.lattice()) {
      return gradient;
    }
    const bool is_handle = meta_of(gradient)->is_pending();
    return step_->takes(index_, is_handle ? gradient : without_base(gradient)) ? at::Tensor() : gradient;
  }

  variable_list merged(RankState& state, const at::Tensor& leaf, const variable_list& gradients, bool may_hold) const {
    if (!meta_of(leaf)->parameter) {  // the program gave it other data since
      meta_of(leaf)->parameter = placed_;
    }
    return merged_in_pass(state, leaf, gradients, may_hold);
  }

  const c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;
  const ParameterInfo* const placed_;   // of one whose gradients are merged in each pass
  std::shared_ptr<PassesOfStep> step_;  // the last one that it was in
  size_t index_ = 0;
  bool merges_in_step_ = false;
};

// Of the program, at the parameter's end of the graph.
bool has_other_hooks(const at::Tensor& parameter) {
  const auto& hooks = impl::hooks(parameter);
  return hooks.size() > 1 || (hooks.size() == 1 && !dynamic_cast<const ParameterHook*>(hooks.front().get()));
}

}  // namespace

bool is_unheard(const at::Tensor& parameter) {
  return torch::autograd::get_current_graph_task_exec_info()->empty() && !has_other_hooks(parameter) &&
         !has_hooks_at_end(parameter);
}

// A pass of the step, for a scope. It ends at the parameters' hooks: nothing gets to the parameters themselves. The
// program's hooks there run once, when a node hands the gradients on; they are taken away meanwhile.
class GradientsAside::Pass {
 public:
  explicit Pass(GradientsAside& of) : of_(of) {
    TESSERA_ASSERT(!of_.state_.engine.gradients_aside);
    of_.state_.engine.gradients_aside = &of_.aside_;
    of_.step_->runs_pass = true;
    of_.step_->gradients.assign(of_.parameters_.size(), at::Tensor());
    for (const at::Tensor& parameter : of_.parameters_) {
      auto& hooks = impl::hooks(parameter);
      if (hooks.size() > 1) {
        auto& kept = kept_.emplace_back(parameter, Hooks()).second;
        std::move(hooks.begin() + 1, hooks.end(), std::back_inserter(kept));
        hooks.resize(1);
      }
      is_heard_ |= has_hooks_at_end(parameter);
    }
  }
  ~Pass() {
    for (auto& [parameter, kept] : kept_) {
      std::move(kept.begin(), kept.end(), std::back_inserter(impl::hooks(parameter)));
    }
    of_.step_->runs_pass = false;
    of_.step_->gradients.clear();  // of a pass that threw
    of_.state_.engine.gradients_aside = nullptr;
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Whether the program has hooks behind those of the parameters, which only a pass that asks for gradients leaves
  // alone.
  bool is_heard() const { return is_heard_; }

 private:
  using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

  GradientsAside& of_;
  std::vector<std::pair<at::Tensor, Hooks>> kept_;
  bool is_heard_ = false;
};

void merge_in_each_pass(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) {
      continue;
    }
    if (merges_in_group(parameter)) {
      const ParameterInfo& info = *meta_of(parameter)->parameter;
      info.group->expect_gradient(info.member, parameter);
    }
    ParameterHook::of(parameter);
  }
}

GradientsAside::GradientsAside(RankState& state, const std::vector<at::Tensor>& parameters, PassMerges merges,
                               TakesGradient takes)
    : state_(state), parameters_(parameters), step_(std::make_shared<PassesOfStep>(std::move(takes))) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    ParameterHook::of(parameters[i]).join(step_, i, merges == PassMerges::kAll && merges_in_pass(parameters[i]));
  }
}

std::vector<at::Tensor> GradientsAside::gradients_of(const at::Tensor& loss) {
  const Pass pass(*this);
  if (pass.is_heard()) {
    const auto asked = torch::autograd::grad({loss}, parameters_, {}, std::nullopt, false, /*allow_unused=*/true);
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].defined()) {
        step_->put_aside(i, asked[i]);
      }
    }
  } else {
    torch::autograd::backward({loss});  // cheaper: the engine does not look each node up among those that are asked for
  }
  std::vector<at::Tensor> gradients = std::move(step_->gradients);
  std::unordered_map<const Meta*, at::Tensor> aside(aside_.begin(), aside_.end());
  aside_.clear();
  for (size_t i = 0; i < parameters_.size() && !aside.empty(); ++i) {
    if (const auto found = is_dtensor(parameters_[i]) ? aside.find(meta_of(parameters_[i])) : aside.end();
        found != aside.end()) {
      gradients[i] = std::move(found->second);
    }
  }
  let_go_of_bases(gradients);
  return gradients;
}

}  // namespace tessera::dtensor
