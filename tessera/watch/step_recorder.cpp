#include "tessera/watch/step_recorder.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>

#include <torch/csrc/autograd/function.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/core/rank_hooks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/watch/call_line.h"
#include "tessera/watch/op_trace.h"
#include "tessera/watch/step_record.h"

namespace tessera::watch {
namespace {

// While it lives, nothing that runs is the program's.
struct Aside {
  explicit Aside(dtensor::RankState& state) : state(state), unobserved(state), point(state.point()) {}
  ~Aside() { state.go_to(point); }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  dtensor::RankState& state;
  const dtensor::Unobserved unobserved;
  const dtensor::ProgramPoint point;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
};

// Whose elements can be read: a gradient that waits for other samples is merged, on a handle of our own.
at::Tensor settled(const at::Tensor& tensor) {
  if (!dtensor::is_dtensor(tensor) || !dtensor::meta_of(tensor)->is_pending()) {
    return tensor;
  }
  const auto own = tensor.view(tensor.sizes());
  dtensor::to_local(own);
  return own;
}

class StepRecorder : public dtensor::OpObserver {
 public:
  StepRecorder(dtensor::RankState& state, const comm::ComparedRun& run)
      : state_(state), run_(run), places_(call_place), file_(steps_path(run.folder, state.ctx.rank)) {
    state_.watch.set_observer(this);
  }

  void take(const NamedTensors& parameters);
  void end();

  void on_begin(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> args) override;
  void on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) override;
  void on_given(dtensor::RankState& state, const char* how, const at::Tensor& given) override;
  void on_end(dtensor::RankState&, const dtensor::OpInfo&) noexcept override { open_.pop_back(); }

 private:
  bool is_of_step() const;
  void enter_step();
  void begin_step();
  void end_step();
  void end_process();
  void take_gradients();
  void note_loss(size_t first);
  std::vector<RecordedOperator> operators() const;
  RecordedValue record_of(const std::string& name, const at::Tensor& tensor);
  bool is_wanted() const { return run_.wanted_step > 0 && number_ == run_.wanted_step; }

  dtensor::RankState& state_;
  const comm::ComparedRun& run_;
  Places places_;
  std::ofstream file_;
  NamedTensors parameters_;
  std::set<std::string> names_;  // of them
  std::vector<const Place*> open_;

  std::unique_ptr<OpTrace> trace_;      // of the open step
  StepValue value_;                     // that is asked for
  std::vector<const Place*> place_of_;  // of the trace's records
  std::vector<RecordedValue> gradients_;
  std::optional<size_t> last_scalar_, loss_;
  uint64_t step_ = 0;  // of the open step, as the rank counts
  int64_t number_ = 0, first_ = 0;
  uint64_t passes_with_gradients_ = 0;  // of the rank, when the gradients were taken
  bool is_done_ = false;
};

void StepRecorder::take(const NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) {
    std::string own = name;
    for (int again = 2; !names_.insert(own).second; ++again) {
      own = c10::str(name, " (", again, ")");
    }
    parameters_.emplace_back(own, tensor);
  }
}

bool StepRecorder::is_of_step() const {
  const auto& sites = state_.pass.sites;
  return !is_done_ && sites.passes() > 0 && sites.evaluation() == 0;
}

void StepRecorder::enter_step() {
  if (trace_ && state_.pass.sites.step() != step_) {
    end_step();
  }
  if (!trace_) {
    begin_step();
  }
}

void StepRecorder::on_begin(dtensor::RankState& state, const dtensor::OpInfo&, c10::ArrayRef<c10::IValue> args) {
  open_.push_back(places_.begin(state, args));
  if (!is_of_step()) {
    return;
  }
  enter_step();
  const bool is_backward = torch::autograd::get_current_node() != nullptr;
  if (is_backward && !loss_) {
    loss_ = last_scalar_;
  }
  const auto passes = state.pass.sites.passes();
  if (!is_backward && trace_->is_after_backward() && !at::GradMode::is_enabled() && passes_with_gradients_ != passes) {
    passes_with_gradients_ = passes;
    take_gradients();
  }
}

void StepRecorder::on_results(dtensor::RankState& state, const dtensor::OpInfo& info,
                              c10::ArrayRef<c10::IValue> results) {
  places_.end(open_.back());
  if (!trace_ || !is_of_step()) {
    return;
  }
  const auto before = trace_->records().size();
  trace_->set_inside(open_.size() > 1 && !state.exact.lattice());
  trace_->on_results(state, info, results);
  place_of_.resize(trace_->records().size(), open_.back());
  if (!info.row.needs_no_value) {
    note_loss(before);
  }
}

void StepRecorder::on_given(dtensor::RankState& state, const char* how, const at::Tensor& given) {
  if (!is_of_step()) {
    return;
  }
  enter_step();
  trace_->set_inside(open_.size() > 0 && !state.exact.lattice());
  trace_->on_given(state, how, given);
  place_of_.resize(trace_->records().size(), places_.here(state));
}

// The last scalar of the forward pass that was computed: backward starts from a gradient that was not.
void StepRecorder::note_loss(size_t first) {
  for (size_t i = first; i < trace_->records().size(); ++i) {
    const auto& record = trace_->records()[i];
    if (record.phase == OpPhase::kForward && record.output == 0 && record.sizes.empty() &&
        at::isFloatingType(record.spec->dtype) && at::GradMode::is_enabled()) {
      last_scalar_ = i;
    }
  }
}

RecordedValue StepRecorder::record_of(const std::string& name, const at::Tensor& tensor) {
  RecordedValue record{name, tensor.sizes().vec(), c10::toString(tensor.scalar_type()), "plain", {}};
  if (dtensor::is_dtensor(tensor)) {
    record.layout = dtensor::meta_of(tensor)->spec.layout_str();
  }
  if (is_wanted() && run_.wanted == name) {
    value_.add(tensor);
  }
  if (has_digest(tensor)) {
    record.digest = digest_value(tensor);
  }
  return record;
}

void StepRecorder::begin_step() {
  step_ = state_.pass.sites.step();
  number_ = static_cast<int64_t>(step_) + 1;
  if (first_ == 0) {
    first_ = number_;
    const Aside aside(state_);
    RecordedStep start{.step = 0, .is_exact = state_.exact.lattice().has_value()};
    for (const auto& [name, tensor] : parameters_) {
      start.parameters.push_back(record_of(name, tensor));
    }
    file_ << start.json() << std::endl;
  }
  trace_ = std::make_unique<OpTrace>(run_.wanted, is_wanted() ? &value_ : nullptr, Keep::kDigest);
  place_of_.clear(), gradients_.clear();
  last_scalar_.reset(), loss_.reset();
}

void StepRecorder::take_gradients() {
  const Aside aside(state_);
  gradients_.clear();
  for (const auto& [name, parameter] : parameters_) {
    if (const at::Tensor gradient = parameter.grad(); gradient.defined()) {
      gradients_.push_back(record_of("gradient of " + name, settled(gradient)));
    }
  }
}

std::vector<RecordedOperator> StepRecorder::operators() const {
  std::vector<RecordedOperator> all;
  for (size_t i = 0; i < trace_->records().size(); ++i) {
    const auto& record = trace_->records()[i];
    all.push_back(
        {{record.key, record.sizes, c10::toString(record.spec->dtype), record.spec.layout_str(), record.digest},
         record.op,
         name_of(record.phase),
         record.site,
         place_of_[i]->line,
         record.number,
         record.is_inside});
  }
  return all;
}

void StepRecorder::end_step() {
  {
    const Aside aside(state_);
    trace_->finish();
    RecordedStep step{.step = number_, .is_exact = state_.exact.lattice().has_value(), .loss = loss_};
    step.gradients = std::move(gradients_);
    for (const auto& [name, tensor] : parameters_) {
      step.parameters.push_back(record_of(name, tensor));
    }
    step.operators = operators();
    file_ << step.json() << std::endl;
    if (is_wanted()) {
      value_.write(value_path(run_.folder, state_.ctx.rank));
    }
    trace_.reset();
  }
  if (number_ - first_ + 1 >= run_.steps) {
    end_process();
  }
}

// All ranks have what they were asked for.
void StepRecorder::end_process() {
  is_done_ = true;
  {
    const Aside aside(state_);
    state_.ctx.world->barrier();
  }
  std::cout << std::flush;
  std::fflush(nullptr);
  std::_Exit(0);
}

void StepRecorder::end() {
  if (trace_ && !is_done_) {
    end_step();
  }
  is_done_ = true;
  state_.watch.set_observer(nullptr);
}

}  // namespace

void record_steps(const NamedTensors& parameters) {
  const auto* run = comm::compared_run();
  if (!run) {
    return;
  }
  auto& state = dtensor::RankState::require();
  static const char kSlot = 0;
  auto& slot = state.ctx.slot(&kSlot);
  if (!slot) {
    const auto recorder = std::make_shared<StepRecorder>(state, *run);
    slot = recorder;
    comm::at_end_of_rank([recorder] { recorder->end(); });
  }
  static_cast<StepRecorder*>(slot.get())->take(parameters);
}

}  // namespace tessera::watch
