// The state of a rank's generator as bytes, for programs that keep and restore it.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// Where this rank's random numbers are: seed, step and place in the program, and the stream of `stock` if that is
// chosen. A plain uint8 tensor.
at::Tensor rng_state();

// Goes back to where rng_state() was taken. Inside a backward pass, a state taken in the forward pass says that what
// follows is that forward run again (as checkpointing does), until a state taken in the backward pass is set. Throws
// for other bytes.
void set_rng_state(const at::Tensor& state);

}  // namespace tessera::dtensor
