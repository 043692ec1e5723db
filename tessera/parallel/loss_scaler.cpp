#include "tessera/parallel/loss_scaler.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::parallel {

namespace {

void verify_power_of_two(const char* what, double value) {
  int exponent = 0;
  TESSERA_CHECK(value > 0 && std::isfinite(value) && std::frexp(value, &exponent) == 0.5, "[loss scaler] the ", what,
                " ", value, "; accepted: a power of two, such as ", value >= 1 ? "65536" : "0.5",
                ", so that scaling rounds nothing");
}

}  // namespace

LossScaler::LossScaler(LossScalerOptions options) : options_(options) {
  verify_power_of_two("growth", options.growth);
  verify_power_of_two("backoff", options.backoff);
  TESSERA_CHECK(options.growth >= 1 && options.backoff <= 1 && options.interval >= 1, "[loss scaler] a growth of ",
                options.growth, ", a backoff of ", options.backoff, " and an interval of ", options.interval,
                " steps; accepted: at least 1, at most 1, and at least 1");
  set_state({.scale = options.scale, .good_steps = 0});
}

bool LossScaler::step(torch::optim::Optimizer& optimizer) {
  if (has_overflowed_) {
    state_ = {.scale = state_.scale * options_.backoff, .good_steps = 0};
    return false;
  }
  optimizer.step();
  if (++state_.good_steps == options_.interval) {
    state_ = {.scale = state_.scale * options_.growth, .good_steps = 0};
  }
  return true;
}

void LossScaler::set_state(const State& state) {
  verify_power_of_two("scale", state.scale);
  state_ = state;
}

}  // namespace tessera::parallel
