#include "tessera/dtensor/front/pass_over.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/front/brought.h"
#include "tessera/dtensor/front/stage_walks.h"
#include "tessera/dtensor/front/walk_checks.h"
#include "tessera/dtensor/front/walk_record.h"

namespace tessera::dtensor {

using Tensors = PassableBody::Tensors;

namespace {

constexpr const char* kReader = "module";  // of what is brought to it
constexpr size_t kMostTrials = 256;        // of a body whose inputs are always others, no more

uint64_t key_of(uint64_t program, uint64_t arguments, const Tensors& inputs, const Tensors& parameters) {
  uint64_t key = base::hash_combine(base::hash_combine(arguments, program), at::GradMode::is_enabled());
  for (const at::Tensor& parameter : parameters) {
    key = base::hash_combine(key, parameter.requires_grad());  // programs freeze some, and thaw them
  }
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) {
      key = base::hash_combine(key, 0);
    } else if (is_dtensor(input)) {
      const Meta& meta = *meta_of(input);
      key = base::hash_combine(key, meta.spec->hash);
      key = base::hash_combine(key, 2 + input.requires_grad() + (meta.origin ? 2 : 0));
    } else {
      key = base::hash_combine(key, static_cast<uint64_t>(input.scalar_type()));
      for (const int64_t size : input.sizes()) {
        key = base::hash_combine(key, static_cast<uint64_t>(size));
      }
    }
  }
  return key;
}

// Whether walks can be like others before (Note [Going past]).
bool has_like_walks(const RankState& state) {
  return state.flags() == 0 && !state.pass.is_recomputing() && !at::autocast::is_autocast_enabled(at::kCPU) &&
         !at::autocast::is_autocast_enabled(at::kCUDA);
}

uint64_t next_id() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

}  // namespace

PassableBody::PassableBody(Tensors parameters) : id_(next_id()), parameters_(std::move(parameters)) {}

PassableBody::~PassableBody() = default;

PassableBody::Stage& PassableBody::stage_of(RankState& state) {
  Stage& stage = stages_[state.ctx.walk.stage];
  if (stage.schedule != state.ctx.schedules) {
    stage = Stage();
    stage.schedule = state.ctx.schedules;
    stage.is_elsewhere =
        !parameters_.empty() && std::all_of(parameters_.begin(), parameters_.end(),
                                            [&](const at::Tensor& parameter) { return is_absent(state, parameter); });
  }
  return stage;
}

bool PassableBody::may_go_past(const RankState& state, const Stage& stage) const {
  return stage.is_elsewhere && StageWalks::of(state.ctx).is_alone(state.ctx.walk.stage, id_) && has_like_walks(state);
}

// Whether this walk is to tell that of others.
bool PassableBody::is_noted(const RankState& state, const Stage& stage) const {
  const StageWalks& walks = StageWalks::of(state.ctx);
  return stage.is_elsewhere && walks.wants_bodies() && !walks.program_of(state.ctx.walk.stage) && has_like_walks(state);
}

// The same on all ranks.
bool PassableBody::may_bring(const RankState& state) const {
  return first_schedule_ != state.ctx.schedules && !writes_to_inputs_ && !state.exact.lattice();
}

bool PassableBody::needs_run() {
  RankState* state = RankState::current();
  if (!state || !state->ctx.walk.is_scheduled) {
    return false;
  }
  const Stage& stage = stage_of(*state);
  return may_go_past(*state, stage) || is_noted(*state, stage) || stage.is_border.value_or(true);
}

std::optional<Tensors> PassableBody::run(uint64_t arguments, const Tensors& given, const Body& body) {
  RankState& state = RankState::require();
  Stage& stage = stage_of(state);
  first_schedule_ = first_schedule_ == -1 ? state.ctx.schedules : first_schedule_;
  const bool brings = may_bring(state);
  Tensors inputs = given;
  std::vector<std::pair<size_t, uint32_t>> coming;  // from other stages: which inputs, and their versions
  for (size_t i = 0; stage.is_border.value_or(true) && i < given.size(); ++i) {
    if (is_dtensor(given[i]) && meta_of(given[i])->parameter) {
      continue;  // whoever reads it knows it for one
    }
    if (const auto there = place_for(given[i], parameters_)) {
      coming.emplace_back(i, version_of(given[i]));
      inputs[i] = brings ? at_stage(state, kReader, given[i], *there) : given[i];
    }
  }
  stage.is_border = stage.is_border.value_or(!coming.empty());
  const uint64_t first_node = at::sequence_number::peek();
  std::optional<Tensors> results = may_go_past(state, stage) ? go_past(state, arguments, inputs, body) : body(inputs);
  if (is_noted(state, stage)) {
    StageWalks::of(state.ctx).note_body(id_, first_node, at::sequence_number::peek());
  }
  const bool has_written = std::any_of(coming.begin(), coming.end(),
                                       [&](const auto& each) { return version_of(given[each.first]) != each.second; });
  TESSERA_CHECK(!has_written || !brings,
                "[job] a module writes to its input, which is of another stage, and did not in the first step "
                "(micro-batch ",
                state.ctx.walk.micro_batch, ", rank ", state.ctx.rank,
                "); accepted: a plan whose \"always_walked\" has the module");
  writes_to_inputs_ |= has_written;
  return results;
}

std::optional<Tensors> PassableBody::go_past(RankState& state, uint64_t arguments, const Tensors& inputs,
                                             const Body& body) {
  if (!std::all_of(inputs.begin(), inputs.end(), is_passable_input)) {
    return body(inputs);
  }
  const uint64_t program = *StageWalks::of(state.ctx).program_of(state.ctx.walk.stage);
  const uint64_t key = key_of(program, arguments, inputs, parameters_);
  const auto found = trials_.find(key);
  if (found == trials_.end()) {
    return trials_.size() < kMostTrials ? try_out(state, key, inputs, body) : body(inputs);
  }
  Trial& trial = found->second;
  if (trial.phase == Phase::kMarked && trial.record->has_run_back()) {
    trial.judge_record();
  }
  if (trial.phase == Phase::kFailed || trial.phase == Phase::kMarked) {
    return body(inputs);
  }
  return trial.record ? trial.record->go_past(inputs) : record(state, trial, inputs, body);
}

// What it sent besides is sent before the next one, which tells whether that is all.
void PassableBody::Trial::judge_record() {
  phase = record->is_clean_back() ? Phase::kPassed : Phase::kFailed;
  if (phase == Phase::kPassed) {
    return;
  }
  const std::shared_ptr<WalkRecord> judged = std::exchange(record, nullptr);
  if (sends_back.is_empty() && judged->found_back() && !judged->found_back()->is_empty()) {
    sends_back = *judged->found_back();
    phase = Phase::kTried;
  }
}

std::optional<Tensors> PassableBody::try_out(RankState& state, uint64_t key, const Tensors& inputs, const Body& body) {
  const Untouched untouched(state, inputs);
  const size_t sent = state.engine.sent.size();
  std::optional<Tensors> results = body(inputs);
  Trial& trial = trials_[key];
  const std::optional<WalkSends> sends = WalkSends::since(state, sent, inputs);
  if (results && sends && (untouched.is_silent() || !sends->is_empty()) && untouched.holds() &&
      is_differentiated_whole(*results, inputs) && can_be_replaced(state, *results, inputs)) {
    trial.sends = *sends;
    const bool has_backward = std::any_of(results->begin(), results->end(), wants_gradient);
    trial.phase = has_backward ? Phase::kTried : Phase::kPassed;
  }
  return results;
}

std::optional<Tensors> PassableBody::record(RankState& state, Trial& trial, const Tensors& inputs, const Body& body) {
  const bool has_backward = trial.phase == Phase::kTried;
  trial.phase = Phase::kFailed;
  if (!trial.sends.run(state, inputs)) {
    return body(inputs);
  }
  const auto record = std::make_shared<WalkRecord>(state, inputs, trial.sends, trial.sends_back);
  const auto let_go = c10::make_scope_exit([&] { record->let_go(); });
  std::optional<Tensors> results = body(record->begin());
  if (results) {
    results = record->end(*std::move(results));
    trial.record = record->is_usable() ? record : nullptr;
  }
  if (trial.record) {
    trial.phase = has_backward ? Phase::kMarked : Phase::kPassed;
  }
  return results;
}

}  // namespace tessera::dtensor
