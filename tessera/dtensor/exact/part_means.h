// Means over the samples of one of a step's micro-batches, in a loop that the program runs itself.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/kernel_registry.h"

namespace tessera::dtensor {

// Note [Means of parts]. A loop of k micro-batches is plain PyTorch's: each loss is the mean of its micro-batch, and
// (loss / k).backward() k times gives the gradient of the step's mean. The labels say which means are over some of the
// step's samples only.
//
// In `exact` the gradient may not depend on k, so nothing may be rounded on the way that the whole batch would not
// round: below, such a mean is its share of the step's mean (its sum over the step's count), as a job adds them. What
// the program sees is k times the share, and its node turns the gradient back: fl(1 / k) into 1. A gradient for which
// no such number is known is refused.
//
// A gradient of exactly 1 says that the loop does not divide: `exact` refuses it, `fast` warns, once.
//
// Inside a job, and in what such a mean is made of, means stay shares (StepMeans::as_shares).
void register_part_means(KernelRegistry& registry);

// How many of the step's samples a tensor holds along `dim`: `here` of `whole`.
struct StepShare {
  int64_t dim = 0;
  int64_t here = 1, whole = 1;

  int64_t parts() const { return whole / here; }
  // The elements of the whole step, of which `count` are here.
  int64_t of_step(int64_t count) const { return count / here * whole; }
};

// By the tensor's labels; nothing if all that it may hold of the step is here.
std::optional<StepShare> share_of_step(const at::Tensor& tensor);

// The gradient s of the step's mean for which `share` is s / parts, rounded to `dtype`, with s a power of two or its
// negative; if there is one.
std::optional<double> whole_of_share(double share, int64_t parts, c10::ScalarType dtype);

}  // namespace tessera::dtensor
