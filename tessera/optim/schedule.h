// Learning rates as pure functions of the step.
#pragma once

#include <cstdint>

namespace tessera::optim {

// A linear rise to `peak` over `warmup` steps, then half a cosine down to `floor` at step `steps`, and `floor` from
// there on.
struct WarmupCosine {
  double peak = 1e-3;
  double floor = 0;
  int64_t warmup = 0;
  int64_t steps = 1;

  // The rate of step 0, 1, ...: peak (step + 1) / warmup while step < warmup, then
  // floor + (peak - floor) (1 + cos(pi (step - warmup) / (steps - warmup))) / 2.
  double operator()(int64_t step) const;
};

// A linear rise to `peak` over `warmup` steps, `peak` until `decay` steps before step `steps`, then a fall to `floor`
// at step `steps`, and `floor` from there on (WSD). A run may go on from its stable part with another `steps`.
struct WarmupStableDecay {
  enum class Fall : uint8_t { kLinear, kRoot };

  double peak = 1e-3;
  double floor = 0;
  int64_t warmup = 0;
  int64_t decay = 0;
  int64_t steps = 1;
  Fall fall = Fall::kLinear;

  // The rate of step 0, 1, ...: peak (step + 1) / warmup while step < warmup, peak while step < steps - decay, then
  // floor + (peak - floor) (1 - x), or (1 - sqrt(x)) where the fall is kRoot, with x = (step - (steps - decay)) /
  // decay. A rise comes first where both would be.
  double operator()(int64_t step) const;
};

}  // namespace tessera::optim
