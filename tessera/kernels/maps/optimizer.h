// One step of AdamW, Adam, SGD, Lion and a running average on n elements. An element's bits depend on its own values
// alone, so shards give the whole's bits.
//
// The formulas are those of torch.optim with foreach=False, fused=False in their order; hyperparameters are computed in
// double and rounded once. T is float or double. Arrays of one call do not overlap.
#pragma once

#include <cstdint>

#include "tessera/kernels/maps/optimizer_options.h"

namespace tessera::kernels {

// Decay::kInGradient: grad = fma(weight_decay, parameter, grad), and no decay below
// average = fma(1 - beta1, grad - average, average)
// square = fma((1 - beta2) * grad, grad, square * beta2)
// largest = max(largest, square), and it stands for the square below (amsgrad); null: without
// parameter = parameter * (1 - lr * weight_decay)
//             + (-(lr / (1 - beta1^step)) * average) / (sqrt(square) / sqrt(1 - beta2^step) + eps)
template <typename T>
void adamw_step(const AdamW& options, int64_t n, T* parameter, const T* grad, T* average, T* square,
                T* largest = nullptr);

// g = fma(weight_decay, parameter, grad); if momentum is not 0: buffer = fma(1 - dampening, g, buffer * momentum), then
// g is the buffer, or with nesterov fma(momentum, buffer, g); parameter = fma(-lr, g, parameter). Without momentum
// `buffer` may be null.
template <typename T>
void sgd_step(const Sgd& options, int64_t n, T* parameter, const T* grad, T* buffer);

// As Chen et al. (2023) say, the sign of zero and of NaN being 0:
// parameter = parameter * (1 - lr * weight_decay) - lr * sign(fma(1 - beta1, grad, average * beta1))
// average = fma(1 - beta2, grad, average * beta2)
template <typename T>
void lion_step(const Lion& options, int64_t n, T* parameter, const T* grad, T* average);

// average = fma(1 - decay, value - average, average)
template <typename T>
void ema_step(double decay, int64_t n, T* average, const T* value);

}  // namespace tessera::kernels
