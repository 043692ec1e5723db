#include "tessera/checkpoint/program/shared_state.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tessera/checkpoint/program/optimizer.h"
#include "tessera/checkpoint/program/optimizer_values.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;
using parallel::OptimizerKind;
using parallel::TensorVisitor;
using torch::optim::OptimizerParamState;

std::map<std::string, at::Tensor> tensors_in(const OptimizerKind& kind, OptimizerParamState* state) {
  std::map<std::string, at::Tensor> tensors;
  TensorVisitor add([&](const char* name, const at::Tensor& value) {
    if (value.defined()) {
      tensors[name] = value;
    }
  });
  if (state != nullptr) {
    kind.visit_state(*state, add);
  }
  return tensors;
}

// What other ranks need to know of it.
json description_of(const OptimizerKind& kind, OptimizerParamState& state) {
  FieldWriter numbers;
  kind.visit_state(state, numbers);
  json tensors = json::object();
  for (const auto& [name, tensor] : tensors_in(kind, &state)) {
    tensors[name] = {{"sizes", tensor.sizes().vec()}, {"dtype", static_cast<int>(tensor.scalar_type())}};
  }
  return {{"numbers", numbers.fields}, {"tensors", tensors}};
}

template <typename States>
OptimizerParamState* find(const States& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  return found == states.end() ? nullptr : found->second.get();
}

}  // namespace

SharedState::SharedState(torch::optim::Optimizer& optimizer, bool is_empty)
    : owned_(dynamic_cast<optim::Owned*>(&optimizer)) {
  for (const auto& group : optimizer.param_groups()) {
    parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
  }
  if (owned_ == nullptr || std::none_of(parameters_.begin(), parameters_.end(), dtensor::is_dtensor)) {
    owned_ = nullptr;
    return;
  }
  owned_->wholes().plan(parameters_);
  before_ = std::exchange(owned_->state(), States());
  if (!is_empty) {
    share();
  }
}

SharedState::~SharedState() {
  if (owned_ != nullptr) {
    owned_->state() = std::move(before_);
  }
}

void SharedState::share() {
  const optim::Wholes& wholes = owned_->wholes();
  const OptimizerKind& kind = kind_of(*owned_);
  json own = json::object();
  for (size_t place = 0; place < parameters_.size(); ++place) {
    if (auto* state = find(before_, parameters_[place]); state != nullptr && wholes.is_here(place)) {
      own[std::to_string(place)] = description_of(kind, *state);
    }
  }
  json all = json::object();
  for (const std::string& text : wholes.exchange(own.dump())) {
    all.update(json::parse(text));
  }
  for (size_t place = 0; place < parameters_.size(); ++place) {
    const auto described = all.find(std::to_string(place));
    if (described == all.end()) {
      continue;
    }
    auto state = kind.make_state();
    FieldReader numbers(described->at("numbers"));
    kind.visit_state(*state, numbers);
    const auto kept = tensors_in(kind, wholes.is_here(place) ? find(before_, parameters_[place]) : nullptr);
    TensorVisitor set([&](const char* name, at::Tensor& value) {
      if (const auto tensor = described->at("tensors").find(name); tensor != described->at("tensors").end()) {
        const auto here = kept.find(name);
        value = wholes.from_owner(place, here == kept.end() ? at::Tensor() : here->second,
                                  tensor->at("sizes").get<std::vector<int64_t>>(),
                                  static_cast<c10::ScalarType>(tensor->at("dtype").get<int>()));
      }
    });
    kind.visit_state(*state, set);
    owned_->state()[parameters_[place].unsafeGetTensorImpl()] = std::move(state);
  }
}

void SharedState::take() {
  if (owned_ == nullptr) {
    return;
  }
  const optim::Wholes& wholes = owned_->wholes();
  const OptimizerKind& kind = kind_of(*owned_);
  for (size_t place = 0; place < parameters_.size(); ++place) {
    auto* state = find(owned_->state(), parameters_[place]);
    if (state == nullptr) {
      continue;
    }
    TensorVisitor move([&](const char*, at::Tensor& value) {
      value = value.defined() && dtensor::is_dtensor(value) ? wholes.to_owner(place, value) : value;
    });
    kind.visit_state(*state, move);
    if (!wholes.is_here(place)) {
      owned_->state().erase(parameters_[place].unsafeGetTensorImpl());
    }
  }
  owned_ = nullptr;
}

}  // namespace tessera::checkpoint
