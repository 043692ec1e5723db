// One step of AdamW and of SGD on n elements. An element's bits depend on its own values alone, so shards give the
// whole's bits.
//
// The formulas are those of torch.optim with foreach=False, fused=False in their order; hyperparameters are computed in
// double and rounded once. T is float or double. Arrays of one call do not overlap.
#pragma once

#include <cstdint>

namespace tessera::kernels {

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int64_t step = 1;  // of this update, from 1
};

// average = fma(1 - beta1, grad - average, average)
// square = fma((1 - beta2) * grad, grad, square * beta2)
// parameter = parameter * (1 - lr * weight_decay)
//             + (-(lr / (1 - beta1^step)) * average) / (sqrt(square) / sqrt(1 - beta2^step) + eps)
template <typename T>
void adamw_step(const AdamW& options, int64_t n, T* parameter, const T* grad, T* average, T* square);

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;  // on the first step of a parameter torch takes none: pass 0 and a buffer of +0
  double weight_decay = 0;
  bool nesterov = false;
};

// g = fma(weight_decay, parameter, grad); if momentum is not 0: buffer = fma(1 - dampening, g, buffer * momentum), then
// g is the buffer, or with nesterov fma(momentum, buffer, g); parameter = fma(-lr, g, parameter). Without momentum
// `buffer` may be null.
template <typename T>
void sgd_step(const Sgd& options, int64_t n, T* parameter, const T* grad, T* buffer);

}  // namespace tessera::kernels
