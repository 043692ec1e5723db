// The gradients of a step's passes, as they come.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

// The gradients of the passes so far, added up, by the parameters' places. Of one rank, on its thread.
class HeldGradients {
 public:
  explicit HeldGradients(dtensor::RankState& state) : state_(state) {}

  // Those of a pass; undefined ones are left alone. Collective where gradients lie otherwise than their sums.
  void add(const std::vector<at::Tensor>& gradients);

  // The same of one of them, of this rank's part alone: no call that ranks compare. What was put off is made now, where
  // it is added if its kernel does that. False: it is not added, since it lies otherwise than the sum. What waits in
  // `exact` is joined by calls.
  bool add_part(size_t i, const at::Tensor& gradient);

  // Undefined, or behind the end: parameters without a gradient so far.
  std::vector<at::Tensor>& sums() { return sums_; }

 private:
  at::Tensor& sum_of(size_t i);

  dtensor::RankState& state_;
  std::vector<at::Tensor> sums_;
};

}  // namespace tessera::parallel
