#include "tessera/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace tessera::optim {

namespace {

double rising(double peak, int64_t step, int64_t warmup) {
  return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
}

}  // namespace

double WarmupCosine::operator()(int64_t step) const {
  if (step < warmup) {
    return rising(peak, step, warmup);
  }
  if (step >= steps) {
    return floor;
  }
  const auto done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double WarmupStableDecay::operator()(int64_t step) const {
  if (step < warmup) {
    return rising(peak, step, warmup);
  }
  const int64_t left = steps - step;
  if (left <= 0 || left > decay) {
    return left <= 0 ? floor : peak;
  }
  const auto done = static_cast<double>(decay - left) / static_cast<double>(decay);
  return floor + (peak - floor) * (1 - (fall == Fall::kRoot ? std::sqrt(done) : done));
}

}  // namespace tessera::optim
