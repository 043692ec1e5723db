// The norm of all gradients, and clipping by it.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

// The L2 norm of the gradients of `parameters` as one vector: 0-dim, in the dtype of the first gradient, replicated.
// Parameters without a gradient count as zero; without any gradient the norm is a float32 zero. Works on plain tensors
// and DTensors; on DTensors collective over their mesh, with one small reduction for each layout among the gradients.
// In `exact` numerics the order of the sums is that of kernels/rows/clip_norm.h, parameters as they come, and all
// gradients share one small all-gather for each axis that cuts any of them.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters);

// Multiplies the gradients in place by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does, and
// returns the norm before. `max_norm` must be positive; infinity leaves the gradients as they are.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
