#include "tessera/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace tessera::optim {

double WarmupCosine::operator()(int64_t step) const {
  if (step < warmup) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (step >= steps) {
    return floor;
  }
  const auto done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace tessera::optim
