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

}  // namespace tessera::optim
