// Where in the program an operator stands: phase, module, source line.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::watch {

enum class OpPhase : uint8_t { kForward, kBackward, kUpdate };
const char* name_of(OpPhase phase);  // `forward`, `backward`, `update`

struct Place {
  OpPhase phase = OpPhase::kForward;
  std::string module = {};     // dotted name; empty: none is known
  std::string line = {};       // `train.py:30`; empty: none is known
  std::string parameter = {};  // read last
  auto operator<=>(const Place&) const = default;
};

// `layers.0.attn.q at train.py:30`, or what of it is known; `no module` where nothing is.
std::string str(const Place& place);

// The part of a parameter's dotted name that names its module.
std::string module_of(const std::string& parameter);

// Follows one rank's program from operator to operator; for observers of operators.
//
// The module is the innermost one that `enter` named. A program that never names one (C++ modules have no hooks), and
// an update, are in the module whose parameter they read last. An operator of backward stands where the forward
// operator does whose derivative it is. The update is what runs without gradients after backward.
class Places {
 public:
  // The line of the program that runs now; empty if it has none.
  using Locate = std::function<std::string()>;
  explicit Places(Locate locate = {}) : locate_(std::move(locate)) {}

  void enter(std::string module) {
    modules_.push_back(std::move(module));
    names_modules_ = true;
  }
  void leave() {
    if (!modules_.empty()) {
      modules_.pop_back();
    }
  }

  // The place of the call that begins. Valid as long as this lives; equal places are one pointer.
  const Place* begin(dtensor::RankState& state, c10::ArrayRef<c10::IValue> args);
  // Its results are there: what was noted for backward belongs to `place`.
  void end(const Place* place);
  // The place of something that is no operator.
  const Place* here(dtensor::RankState& state);

 private:
  void start_pass(dtensor::RankState& state);
  const Place* of_backward(const torch::autograd::Node& node);
  const Place* intern(Place place) { return &*places_.insert(std::move(place)).first; }
  std::string line() const { return locate_ ? locate_() : std::string(); }

  Locate locate_;
  std::set<Place> places_;
  std::vector<std::string> modules_;
  std::unordered_map<uint64_t, const Place*> of_node_;  // by sequence number
  const Place* last_backward_ = nullptr;
  const dtensor::ParameterInfo* parameter_ = nullptr;  // read last in this forward pass or update
  uint64_t pass_ = 0;
  bool after_backward_ = false;
  bool names_modules_ = false;
};

// `Float[8, 16] {dp: S(0), tp: R}`, without labels.
std::string text_of(const layout::SpecData& spec);

}  // namespace tessera::watch
