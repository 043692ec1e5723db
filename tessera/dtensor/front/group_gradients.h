// Gradients of parameters that are gathered together, merged by one collective when a backward pass has all of them.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/without_hooks.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// From now on plain backward passes in `fast` numerics merge the gradients of these parameters together with those of
// their groups, and add them to `.grad` themselves when the last one is there, or the pass ends. Each is merged alone
// where somebody else hears of it: in passes that ask for some gradients (torch.autograd.grad), or build a graph, and
// where the parameter has other hooks. Collective over the axes of the groups, in backward passes.
void merge_gradients_together(const std::vector<at::Tensor>& parameters);

// While it lives, such gradients of this rank are put aside instead, for whoever asks for all of them by
// autograd::grad.
class GradientsAside {
 public:
  // `parameters` must live longer; their own hooks are taken away meanwhile (see WithoutHooks).
  GradientsAside(RankState& state, const std::vector<at::Tensor>& parameters);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // What autograd::grad gave of these parameters, in their order, and what was put aside.
  std::vector<at::Tensor> with(std::vector<at::Tensor> gradients);

 private:
  RankState& state_;
  const std::vector<at::Tensor>& parameters_;
  const WithoutHooks without_hooks_;  // gives them back last, and drops those that stood in their place
  std::vector<std::pair<const Meta*, at::Tensor>> aside_;
};

}  // namespace tessera::dtensor
