#include "tessera/watch/places.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tessera/base/text.h"
#include "tessera/dtensor/record/arguments.h"

namespace tessera::watch {
namespace {

// The last parameter among the arguments, views of parameters too; `is_mixed` if there are some of several modules.
struct Read {
  const dtensor::ParameterInfo* parameter = nullptr;
  bool is_mixed = false;
};

Read read_by(c10::ArrayRef<c10::IValue> args) {
  Read read;
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    const dtensor::ParameterInfo* next = dtensor::is_dtensor(tensor) ? dtensor::meta_of(tensor)->parameter : nullptr;
    if (!next) {
      return;
    }
    read.is_mixed |= read.parameter && module_of(read.parameter->name) != module_of(next->name);
    read.parameter = next;
  });
  return read;
}

std::string name_or_nothing(const dtensor::ParameterInfo* parameter) {
  return parameter ? parameter->name : std::string();
}

}  // namespace

const char* name_of(OpPhase phase) {
  return phase == OpPhase::kForward ? "forward" : phase == OpPhase::kBackward ? "backward" : "update";
}

std::string str(const Place& place) {
  const std::string module = place.module.empty() ? "no module" : place.module;
  return place.line.empty() ? module : module + " at " + place.line;
}

std::string text_of(const layout::SpecData& spec) {
  return c10::str(spec.dtype, "[", base::join(spec.sizes, ", "), "] ", layout::str(spec.mesh, spec.placements));
}

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

const Place* Places::begin(dtensor::RankState& state, c10::ArrayRef<c10::IValue> args) {
  const Read read = read_by(args);
  start_pass(state);
  const auto node = torch::autograd::get_current_node();
  if (read.parameter && (!node || state.pass.is_recomputing())) {
    parameter_ = read.is_mixed ? nullptr : read.parameter;
  }
  return here(state);
}

void Places::start_pass(dtensor::RankState& state) {
  if (state.pass.sites.passes() == pass_) {
    return;
  }
  pass_ = state.pass.sites.passes();
  parameter_ = nullptr;
  after_backward_ = false;
}

const Place* Places::here(dtensor::RankState& state) {
  start_pass(state);
  const auto node = torch::autograd::get_current_node();
  if (node && modules_.empty() && !state.pass.is_recomputing()) {
    return of_backward(*node);
  }
  const bool is_update = !node && after_backward_ && modules_.empty() && !at::GradMode::is_enabled();
  if (!node && !is_update) {
    after_backward_ = false;
  }
  const OpPhase phase = node ? OpPhase::kBackward : is_update ? OpPhase::kUpdate : OpPhase::kForward;
  const std::string parameter = name_or_nothing(parameter_);
  const bool is_by_parameter = is_update || !names_modules_;
  return intern({phase,
                 !modules_.empty() ? modules_.back()
                 : is_by_parameter ? module_of(parameter)
                                   : std::string(),
                 line(), parameter});
}

const Place* Places::of_backward(const torch::autograd::Node& node) {
  after_backward_ = true;
  parameter_ = nullptr;  // what follows has read none yet
  if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    const std::string name =
        dtensor::is_dtensor(end->variable) ? name_or_nothing(dtensor::meta_of(end->variable)->parameter) : "";
    return intern({OpPhase::kBackward, module_of(name), "", name});
  }
  if (const auto known = of_node_.find(node.sequence_nr()); known != of_node_.end()) {
    const Place& forward = *known->second;
    last_backward_ = intern({OpPhase::kBackward, forward.module, forward.line, forward.parameter});
  }
  return last_backward_ ? last_backward_ : intern({OpPhase::kBackward, "", "", ""});
}

void Places::end(const Place* place) {
  if (place->phase == OpPhase::kForward && at::GradMode::is_enabled()) {
    of_node_.try_emplace(at::sequence_number::peek() - 1, place);
  }
}

}  // namespace tessera::watch
