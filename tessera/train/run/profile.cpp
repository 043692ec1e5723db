#include "tessera/train/run/profile.h"

#include <filesystem>

#include <ATen/ops/full.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/call/call.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_texts.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/schedule/action.h"
#include "tessera/trace/spans.h"

namespace tessera::train {
namespace {

const char kKey = 0;  // of the context's slot
constexpr const char* kPhase = "phase";
constexpr const char* kPass = "pass";
constexpr const char* kCompute = "compute";
constexpr const char* kCommunication = "communication";

// What a callback's begin leaves for its end.
struct Begun : at::ObserverContext {
  Begun(std::shared_ptr<Profiler::Recording> recording, bool is_pass)
      : recording(std::move(recording)), is_pass(is_pass) {}
  std::shared_ptr<Profiler::Recording> recording;
  bool is_pass;
};

}  // namespace

// The spans of one rank. Collectives and operators tell it while it listens.
class Profiler::Recording : public comm::Watcher, public std::enable_shared_from_this<Recording> {
 public:
  void begin_step(int64_t step) {
    is_updating_ = is_backward_ = false;
    phase_ = nullptr;
    spans_.begin("step " + std::to_string(step), kPhase);
    auto& context = comm::RankContext::require();
    context.slot(&kKey) = shared_from_this();
    context.watchers.push_back(shared_from_this());
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_function, on_function_end)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  }

  void end_step() {
    silence();
    set_phase(nullptr);
    spans_.end();
  }

  // Stops listening; after an error too.
  void silence() {
    auto* context = comm::RankContext::current();
    if (!context || !context->slot(&kKey)) {
      return;
    }
    at::removeCallback(handle_);
    context->slot(&kKey).reset();
    std::erase_if(context->watchers, [this](const auto& watcher) { return watcher.get() == this; });
  }

  void update() { is_updating_ = true; }

  void on_begin(const comm::Call& call) override {
    begin(c10::str(comm::name_of(call.kind), " ", call.group->name()), kCommunication, call.bytes(), false);
  }
  void on_end(const comm::Call&, bool) override { end(); }

  const trace::Spans& spans() const { return spans_; }

 private:
  static std::unique_ptr<at::ObserverContext> on_function(const at::RecordFunction& function) {
    auto* context = comm::RankContext::current();
    auto recording = context ? std::static_pointer_cast<Recording>(context->slot(&kKey)) : nullptr;
    if (!recording) {
      return nullptr;
    }
    const bool is_pass = function.scope() == at::RecordScope::USER_SCOPE && recording->depth_ == 0;
    if (is_pass) {
      recording->begin_pass(function.name());
    } else {
      recording->begin(function.name(), kCompute, -1, function.scope() == at::RecordScope::BACKWARD_FUNCTION);
    }
    return std::make_unique<Begun>(std::move(recording), is_pass);
  }

  static void on_function_end(const at::RecordFunction&, at::ObserverContext* begun) {
    if (begun != nullptr) {
      const auto& [recording, is_pass] = *static_cast<Begun*>(begun);
      is_pass ? recording->end_pass() : recording->end();
    }
  }

  void begin(std::string_view name, const char* category, int64_t bytes, bool is_node) {
    if (depth_++ == 0) {
      set_phase(phase_now(is_node));
    }
    spans_.begin(name, category, bytes);
  }

  void end() {
    --depth_;
    spans_.end();
  }

  // Phases are inside of passes, or beside them.
  void begin_pass(std::string_view name) {
    set_phase(nullptr);
    spans_.begin(name, kPass);
    const auto action = schedule::try_parse_action(name);
    is_in_pass_ = true, is_backward_ = action && action->kind != schedule::ActionKind::kForward;
  }

  void end_pass() {
    set_phase(nullptr);
    spans_.end();
    is_in_pass_ = false;
  }

  // Backward lasts until the next pass begins: what is done with its gradients is a part of it.
  const char* phase_now(bool is_node) {
    if (is_updating_) {
      return "update";
    }
    const auto passes = dtensor::RankState::require().pass.sites.passes();
    is_backward_ = is_node || torch::autograd::get_current_node() || (is_backward_ && (is_in_pass_ || passes == pass_));
    pass_ = passes;
    return is_backward_ ? "backward" : "forward";
  }

  void set_phase(const char* phase) {
    if (phase == phase_) {
      return;
    }
    if (phase_ != nullptr) {
      spans_.end();
    }
    if (phase != nullptr) {
      spans_.begin(phase, kPhase);
    }
    phase_ = phase;
  }

  trace::Spans spans_;
  at::CallbackHandle handle_ = 0;
  int64_t depth_ = 0;            // of operators and collectives
  const char* phase_ = nullptr;  // a literal of phase_now
  bool is_updating_ = false, is_backward_ = false, is_in_pass_ = false;
  uint64_t pass_ = 0;
};

std::string ProfiledSteps::str() const { return std::to_string(first) + "-" + std::to_string(last); }

ProfiledSteps parse_profiled_steps(std::string_view text) {
  const auto parts = base::split(text, '-');
  const auto first = base::try_parse_int(parts.front()), last = base::try_parse_int(parts.back());
  TESSERA_CHECK_AS(ConfigError, parts.size() <= 2 && first && last && *first >= 1 && *first <= *last, "[profile] \"",
                   text, "\" are no steps; accepted: 3-5, or 3, counted from 1");
  return {*first, *last};
}

Profiler::Profiler(ProfiledSteps steps, std::string path, Observer& inner)
    : steps_(steps), path_(std::move(path)), inner_(inner), recording_(std::make_shared<Recording>()) {}

Profiler::~Profiler() { recording_->silence(); }

void Profiler::on_begin(int64_t step) {
  inner_.on_begin(step);
  if (steps_.has(step)) {
    recording_->begin_step(step);
  }
}

void Profiler::on_update() {
  inner_.on_update();
  recording_->update();
}

void Profiler::on_step(const StepRecord& record, const Training& training) {
  if (steps_.has(record.step)) {
    recording_->end_step();
  }
  if (record.step == steps_.last) {
    write();
  }
  inner_.on_step(record, training);
}

void Profiler::write() const {
  auto& context = comm::RankContext::require();
  const auto zero = at::full({1}, recording_->spans().first_ns(), at::TensorOptions().dtype(at::kLong));
  context.world->all_reduce(zero, comm::ReduceOp::kMin)->wait();
  const auto lanes =
      comm::gather_texts(*context.world, recording_->spans().json(context.rank, *zero.const_data_ptr<int64_t>()));
  if (context.rank == 0) {
    std::error_code ignored;  // what is wrong shows when the file is written
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    base::AtomicFile file(path_);
    file.write(trace::trace_file(lanes));
    file.commit();
  }
}

}  // namespace tessera::train
