// AdamW's hyperparameters as factors of the element type. Internal to this floor.
#pragma once

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/kernels/base/table.h"
#include "tessera/kernels/maps/optimizer_options.h"

namespace tessera::kernels {

// Computed in double, each rounded once.
template <typename T>
AdamWFactors<T> fold_adamw(const AdamW& o) {
  TESSERA_CHECK(o.step >= 1, "[adamw_step] step ", o.step, "; steps count from 1");
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  const bool is_apart = o.decay == Decay::kApart;
  return {.sign = static_cast<T>(o.maximize ? -1 : 1),
          .decay = static_cast<T>(is_apart ? 1 - o.lr * o.weight_decay : 1),
          .in_gradient = static_cast<T>(is_apart ? 0 : o.weight_decay),
          .average_weight = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .square_weight = static_cast<T>(1 - o.beta2),
          .root_correction = static_cast<T>(std::sqrt(correction2)),
          .eps = static_cast<T>(o.eps),
          .step_size = static_cast<T>(o.lr / correction1)};
}

}  // namespace tessera::kernels
