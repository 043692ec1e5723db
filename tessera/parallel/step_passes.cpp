#include "tessera/parallel/step_passes.h"

#include <exception>
#include <limits>
#include <map>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/ops/mul.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/exact/carry.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/stage_walks.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/layout/vocabulary.h"
#include "tessera/parallel/held_gradients.h"
#include "tessera/schedule/families/family.h"

namespace tessera::parallel {

namespace {

using dtensor::RankState;
using schedule::Action;
using schedule::ActionKind;

// What one walk has in it: a stage, or a part of the vocabulary.
int64_t walked_place_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::kHead:
    case ActionKind::kHeadBackward: return layout::kHead;
    case ActionKind::kEmbed:
    case ActionKind::kEmbedBackward: return layout::kLookup;
    default: return action.stage;
  }
}

// Whether the rank's walks are of one stage, or part, alone.
bool tells_apart(const PassList& list) { return list.rank_stages.size() > 1 || list.vocabulary > 0; }

// Ranks of a schedule execute the same walks in different orders, and go past modules of other stages: what they
// executed is compared as a sum over walks, of which each is the sum of its calls, without what comes late, which only
// the ranks of a stage have.
class WalkedPrograms {
 public:
  explicit WalkedPrograms(comm::Program& program)
      : program_(program), before_(program), exceptions_(std::uncaught_exceptions()) {}
  // Ranks that an exception ends are each somewhere else: they stand then where they began.
  ~WalkedPrograms() {
    if (std::uncaught_exceptions() > exceptions_) {
      sum_ = count_ = 0;
    }
    program_.hash = base::hash_combine(before_.hash, sum_);
    program_.count = before_.count + count_;
    program_.sum = before_.sum + sum_;
  }
  WalkedPrograms(const WalkedPrograms&) = delete;
  WalkedPrograms& operator=(const WalkedPrograms&) = delete;

  void begin(const Action& action) {
    micro_batch_ = static_cast<uint64_t>(action.micro_batch);
    program_.hash = base::hash_combine(before_.hash, micro_batch_);
    program_.count = before_.count;
    start_ = program_.sum;
  }
  void end(bool is_late) {
    if (is_late) {
      return;
    }
    sum_ += base::hash_combine(program_.sum - start_, micro_batch_);
    count_ += program_.count - before_.count;
  }

 private:
  comm::Program& program_;
  const comm::Program before_;
  const int exceptions_;
  uint64_t micro_batch_ = 0, start_ = 0, sum_ = 0, count_ = 0;
};

bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInput || kind == ActionKind::kHeadBackward ||
         kind == ActionKind::kEmbedBackward;
}

// Whether the action is the half of a backward pass that leaves the gradients of weights.
bool is_input_half(const PassList& list, const Action& action) {
  return action.kind == ActionKind::kInput || (action.kind == ActionKind::kHead && list.vocabulary == 1);
}

// The rank walks as one action says, for a scope.
class WalkScope {
 public:
  // `adds`: there are gradients to which those of this pass are added.
  WalkScope(RankState& state, const PassList& list, const Action& action, bool adds) : state_(state) {
    comm::Walk walk;
    if (is_input_half(list, action)) {
      walk.puts_off = comm::PutsOff::kWeights;
    } else if (adds && is_backward(action.kind) && !state.exact.lattice()) {
      walk.puts_off = comm::PutsOff::kSums;
    }
    if (list.is_scheduled) {
      walk.is_scheduled = true;
      walk.micro_batch = action.micro_batch;
      walk.axis = list.axis;
    }
    if (list.is_scheduled && tells_apart(list)) {
      walk.stage = walked_place_of(action);
      walk.keeps_books = walk.stage == list.rank_stages.front();
    }
    state.begin_walk(std::move(walk));
  }
  ~WalkScope() { state_.begin_walk({}); }
  WalkScope(const WalkScope&) = delete;
  WalkScope& operator=(const WalkScope&) = delete;

 private:
  RankState& state_;
};

class PassRunner {
 public:
  PassRunner(Step& step, const PassList& list, const StepPasses& passes)
      : state_(RankState::require()),
        step_(step),
        list_(list),
        passes_(passes),
        held_(state_),
        aside_(state_, passes.parameters, passes.merges,
               [this](size_t parameter, const at::Tensor& gradient) { return takes(parameter, gradient); }) {
    losses_.resize(passes.samples.size());
  }
  ~PassRunner() {
    open_.clear();
    keep_nodes();
  }
  PassRunner(const PassRunner&) = delete;
  PassRunner& operator=(const PassRunner&) = delete;

  StepResult run() {
    std::optional<WalkedPrograms> programs;
    if (list_.is_scheduled) {
      programs.emplace(state_.ctx.program);
      ++state_.ctx.schedules;
      dtensor::StageWalks::of(state_.ctx).begin_run();
    }
    for (size_t i = 0; i < list_.actions.size(); ++i) {
      const Action& action = list_.actions[i];
      const bool is_last = i + 1 == list_.actions.size();
      const bool goes_on = !is_last && is_backward_of(list_.actions[i + 1], action);
      RECORD_USER_SCOPE(schedule::to_string(action));
      if (is_last && is_waited_for(action)) {
        execute({ActionKind::kInput, action.stage, action.micro_batch}, false, programs);
        execute({ActionKind::kWeight, action.stage, action.micro_batch}, false, programs);
      } else {
        execute(action, goes_on, programs);
      }
    }
    return {std::move(losses_), std::move(held_.sums())};
  }

 private:
  using Key = std::pair<int64_t, int64_t>;

  // Whether it is a whole backward pass for which the stage before waits. The last one of a rank's list is done by
  // halves: the gradient of its input is on its way before those of weights are made, with which nobody goes on here.
  bool is_waited_for(const Action& action) const {
    return list_.is_scheduled && action.kind == ActionKind::kBackward && action.stage > 0;
  }

  void execute(const Action& action, bool goes_on, std::optional<WalkedPrograms>& programs) {
    const WalkScope scope(state_, list_, action, !held_.sums().empty());
    if (programs) {
      programs->begin(action);
    }
    run(action, goes_on);
    if (programs) {
      programs->end(is_weight_half(action));
    }
    held_.add(std::exchange(gradients_, {}));
  }

  // A forward pass whose backward has not come.
  struct Forward {
    at::Tensor loss;
    int64_t first_node = 0;                             // its first node's number in autograd's count
    std::optional<Step::Paused> paused = std::nullopt;  // none: the step is in it
  };

  // The forward passes over a micro-batch, one for each of the rank's stages: all read the same tensors and draw the
  // same random numbers.
  struct Walks {
    std::vector<at::Tensor> batch;
    dtensor::Random random;
    size_t count = 0;
  };

  Walks& walks_of(int64_t k) {
    const auto found = walks_.find(k);
    return found != walks_.end() ? found->second
                                 : walks_.emplace(k, Walks{passes_.batch(k), state_.random}).first->second;
  }

  static Key key_of(const Action& action) { return {walked_place_of(action), action.micro_batch}; }

  // Whether it is a backward pass over the graph of this action, if that is a forward pass.
  static bool is_backward_of(const Action& action, const Action& forward) {
    return is_backward(action.kind) && key_of(action) == key_of(forward);
  }

  bool is_weight_half(const Action& action) const {
    return action.kind == ActionKind::kWeight || (action.kind == ActionKind::kHeadBackward && list_.vocabulary == 1);
  }

  void run(const Action& action, bool goes_on) {
    if (is_weight_half(action)) {
      return weights(action);
    }
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kEmbed: return forward(action, goes_on);
      case ActionKind::kHead: return head(action, goes_on);
      case ActionKind::kBackward:
      case ActionKind::kHeadBackward:
      case ActionKind::kEmbedBackward: return backward(action);
      case ActionKind::kInput: return input(action);
      default: TESSERA_CHECK(false, "[job] a schedule with ", action, ", which a job does not run");
    }
  }

  void head(const Action& action, bool goes_on) {
    const bool goes_back = list_.vocabulary == 1 && !passes_.parameters.empty();
    forward(action, goes_on || goes_back);
    if (goes_back) {
      input(action);
    }
  }

  void forward(const Action& action, bool goes_on) {
    const int64_t k = action.micro_batch;
    Forward forward{.loss = {}, .first_node = static_cast<int64_t>(at::sequence_number::peek())};
    Walks& walks = walks_of(k);
    const dtensor::Random here = std::exchange(state_.random, walks.random);
    step_.begin_pass(passes_.samples[static_cast<size_t>(k)]);
    for (const at::Tensor& given : walks.batch) {
      dtensor::tell_given(state_, "batch", given);
    }
    const comm::Program::Stretch before = state_.ctx.program.place();
    forward.loss = passes_.loss(k, walks.batch);
    if (list_.is_scheduled && k == list_.actions.front().micro_batch) {
      dtensor::StageWalks::of(state_.ctx)
          .note_first_forward(state_.ctx.walk.stage, state_.ctx.program.since(before),
                              static_cast<uint64_t>(forward.first_node), forward.loss);
    }
    if (walks.count++ > 0) {
      state_.random = here;
    }
    if (walks.count == std::max<size_t>(list_.rank_stages.size(), 1) + (list_.vocabulary > 0 ? 2 : 0)) {
      walks_.erase(k);
    }
    tell(action, losses_[static_cast<size_t>(k)], forward.loss.detach());
    if (passes_.parameters.empty()) {
      return step_.end_pass();
    }
    if (!goes_on) {
      forward.paused = step_.pause();
    }
    open_.insert_or_assign(key_of(action), std::move(forward));
    keep_nodes();
  }

  // What the pass that ran says of its micro-batch's loss. The terms of one that waits may be of several stages.
  void tell(const Action& action, at::Tensor& told, const at::Tensor& loss) {
    const bool is_told_here = is_ours(loss) || is_of_head(action, loss);
    if (tells_apart(list_) && waits(loss)) {
      told = dtensor::join_walks(state_, told, loss, is_told_here);
    } else if (is_told_here) {
      told = loss;
    }
  }

  void backward(const Action& action) {
    auto entry = open_.extract(key_of(action));
    TESSERA_CHECK(!entry.empty(), "[job] a schedule with ", action, " before its forward pass");
    keep_nodes();
    Forward& forward = entry.mapped();
    if (forward.paused) {
      step_.resume(*std::move(forward.paused));
    }
    const at::Tensor loss = passes_.scale ? at::mul(forward.loss, *passes_.scale) : forward.loss;
    forward.loss.reset();
    gradients_ = gradients_of(loss);
    for (at::Tensor& gradient : gradients_) {
      if (gradient.defined() && is_of_other_walk(gradient)) {
        gradient.reset();
      }
    }
    step_.end_pass();
  }

  // Whether the walk that runs has nothing to add to the parameter's gradient. Sums that wait are put together from all
  // walks.
  bool is_of_other_walk(const at::Tensor& gradient) const {
    return is_of_part(gradient) || (!waits(gradient) && !is_ours(gradient));
  }

  static bool waits(const at::Tensor& value) {
    return dtensor::is_dtensor(value) && dtensor::meta_of(value)->is_pending();
  }

  // Whether its calls are those of the pass's weight half.
  bool waits_for_weights(const at::Tensor& gradient) const {
    return state_.ctx.walk.puts_off == comm::PutsOff::kWeights && dtensor::is_dtensor(gradient) &&
           dtensor::is_late(*dtensor::meta_of(gradient));
  }

  void input(const Action& action) {
    backward(action);
    put_aside(action);
  }

  // Of an input pass: the gradients whose calls were put off.
  void put_aside(const Action& action) {
    std::vector<at::Tensor>& late = late_[key_of(action)];
    late.resize(gradients_.size());
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (gradients_[i].defined() && dtensor::is_dtensor(gradients_[i]) &&
          dtensor::is_late(*dtensor::meta_of(gradients_[i]))) {
        late[i] = std::move(gradients_[i]);
      }
    }
  }

  void weights(const Action& action) {
    auto entry = late_.extract(key_of(action));
    TESSERA_CHECK(!entry.empty(), "[job] a schedule with ", action, " before its input pass");
    gradients_ = std::move(entry.mapped());
    const dtensor::Continuation continuation(state_, held_.sums());
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (!gradients_[i].defined()) {
        continue;
      }
      if (state_.exact.lattice()) {
        dtensor::run_late(state_, *dtensor::meta_of(gradients_[i]), "weight pass");
      } else if (held_.add_part(i, gradients_[i])) {
        gradients_[i].reset();
      }
    }
  }

  // In `exact` the sums over samples go on where those of the passes before stopped.
  std::vector<at::Tensor> gradients_of(const at::Tensor& loss) {
    const dtensor::Continuation continuation(state_, held_.sums());
    return aside_.gradients_of(loss);
  }

  // Whether a gradient that a pass has is done with.
  bool takes(size_t parameter, const at::Tensor& gradient) {
    return is_of_other_walk(gradient) || (!waits_for_weights(gradient) && held_.add_part(parameter, gradient));
  }

  // Whether the walk that runs says what this value is: of the walks over one micro-batch one does.
  bool is_ours(const at::Tensor& value) const {
    return !tells_apart(list_) || !dtensor::is_dtensor(value) || state_.is_noted(dtensor::meta_of(value)->spec);
  }

  const layout::Placement& place_on_axis(const at::Tensor& value) const {
    const layout::Spec& spec = dtensor::meta_of(value)->spec;
    return spec->placements[spec->mesh.axis_index(list_.axis)];
  }

  // A loss that all ranks have, for they computed it together.
  bool is_of_head(const Action& action, const at::Tensor& loss) const {
    return action.kind == ActionKind::kHead && dtensor::is_dtensor(loss) && !place_on_axis(loss).is_on();
  }

  // Whether the gradient is that of a part of the vocabulary in a walk that has it not.
  bool is_of_part(const at::Tensor& gradient) const {
    return list_.vocabulary > 0 && dtensor::is_dtensor(gradient) &&
           layout::is_of_vocabulary(place_on_axis(gradient).stage);
  }

  // What backward passes that are to come must know of their forward calls.
  void keep_nodes() {
    int64_t oldest = std::numeric_limits<int64_t>::max();
    for (const auto& [key, forward] : open_) {
      oldest = std::min(oldest, forward.first_node);
    }
    state_.engine.forward_plans.keep_from(oldest);
  }

  RankState& state_;
  Step& step_;
  const PassList& list_;
  const StepPasses& passes_;
  std::map<Key, Forward> open_;                  // by stage, or part, and micro-batch
  std::map<Key, std::vector<at::Tensor>> late_;  // of input passes whose weight pass has not come
  std::map<int64_t, Walks> walks_;               // by micro-batch
  std::vector<at::Tensor> gradients_;            // of the pass that ran last
  std::vector<at::Tensor> losses_;
  HeldGradients held_;
  dtensor::GradientsAside aside_;
};

// What is cut over the stages has passes.
void verify_vocabulary(const plan::Plan& plan, size_t axis) {
  for (const plan::ParameterPlan& entry : plan.parameters) {
    TESSERA_CHECK_AS(ConfigError, plan.vocabulary > 0 || !entry.storage[axis].is_shard(), "[job] schedule ",
                     plan.schedule, ", whose passes are of one stage each, and \"", entry.pattern, "\" is ",
                     layout::str(plan.mesh, entry.storage),
                     ", which is cut over the stages; accepted: a plan that says \"vocabulary\": 1 (or 2), or no "
                     "schedule");
  }
}

}  // namespace

PassList passes_in_turn(int64_t micro_batches, bool with_gradients) {
  PassList list;
  for (int64_t k = 0; k < micro_batches; ++k) {
    list.actions.push_back({ActionKind::kForward, 0, k});
    if (with_gradients) {
      list.actions.push_back({ActionKind::kBackward, 0, k});
    }
  }
  return list;
}

PassList scheduled_passes(const plan::Plan& plan, int64_t micro_batches) {
  const auto axis = plan.pipeline_axis();
  TESSERA_CHECK_AS(ConfigError, axis, "[job] schedule ", plan.schedule, " on mesh {", plan.mesh.str(),
                   "}; accepted: a mesh with a pp axis");
  verify_vocabulary(plan, static_cast<size_t>(*axis));
  const schedule::Schedule all = schedule::make_schedule(plan.schedule, {.ranks = plan.mesh.axis(*axis).size,
                                                                         .micro_batches = micro_batches,
                                                                         .per_rank = plan.stages_per_rank,
                                                                         .barriers = plan.vocabulary});
  const int64_t own = RankState::require().ctx.coord(plan.mesh)[static_cast<size_t>(*axis)];
  return {.actions = all.ranks[static_cast<size_t>(own)],
          .is_scheduled = true,
          .axis = plan.mesh.axis(*axis).name,
          .rank_stages = all.stages_of(own),
          .vocabulary = plan.vocabulary};
}

StepResult run_passes(Step& step, const PassList& list, const StepPasses& passes) {
  RankState& state = RankState::require();
  const dtensor::Random before = state.random;
  try {
    return PassRunner(step, list, passes).run();
  } catch (...) {
    state.ctx.own_messages.clear();
    state.ctx.broken_schedules += list.is_scheduled;
    if (list.is_scheduled) {
      state.random = before;  // ranks drew for other micro-batches
    }
    throw;
  }
}

}  // namespace tessera::parallel
