// What optimizers are set to for one step. `maximize` negates the gradient first.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// How a decay of weights enters: as a step of its own (AdamW), or as a part of the gradient (Adam).
enum class Decay : uint8_t { kApart, kInGradient };

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int64_t step = 1;  // of this update, from 1
  Decay decay = Decay::kApart;
  bool maximize = false;
};

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;  // on the first step of a parameter torch takes none: pass 0 and a buffer of +0
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  bool maximize = false;
};

}  // namespace tessera::kernels
