// Gradients that are merged as soon as a backward pass has them: by one collective those of parameters that are
// gathered together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/record/without_hooks.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// From now on plain backward passes merge those gradients of these parameters that their policies say so. Those of a
// group are merged together and added to `.grad` here when the last one is there, or the pass ends; in `exact` as far
// as their batch leaves are complete. Each is merged alone where somebody else hears of it: in passes that ask for some
// gradients (torch.autograd.grad), or build a graph, and where the parameter has other hooks. Collective over the axes
// of the policies, in backward passes.
void merge_in_each_pass(const std::vector<at::Tensor>& parameters);

// Whether nobody hears of the gradient of a placed parameter on its way there, in the backward pass that runs: then it
// may be handed to the parameter.
bool is_unheard(const at::Tensor& parameter);

// Whether the passes of a step merge what policies say is merged in each.
enum class PassMerges : uint8_t { kAll, kNone };

// Is given the gradient of a parameter, by its index, as soon as a pass has it; says whether it took it.
using TakesGradient = std::function<bool(size_t parameter, const at::Tensor& gradient)>;

// While it lives, such gradients of this rank are put aside instead, for whoever asks for all of them by
// autograd::grad.
class GradientsAside {
 public:
  // `parameters` must live longer; their own hooks are taken away meanwhile (see WithoutHooks). In `fast` those that no
  // group merges are offered to `takes`, so that a pass need not hold a whole model's.
  GradientsAside(RankState& state, const std::vector<at::Tensor>& parameters, PassMerges merges, TakesGradient takes);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // What autograd::grad gave of these parameters, in their order, and what was put aside. Undefined: taken, or unused.
  std::vector<at::Tensor> with(std::vector<at::Tensor> gradients);

 private:
  RankState& state_;
  const std::vector<at::Tensor>& parameters_;
  const TakesGradient takes_;
  const WithoutHooks without_hooks_;  // gives them back last, and drops those that stood in their place
  std::vector<std::pair<const Meta*, at::Tensor>> aside_;
};

// Merges the gradients of a step, each into the layout of its parameter, over the axes that they are still sums over:
// many by few collectives. Undefined ones, and those that lie so, are left alone. Collective over these axes.
void merge_step(RankState& state, std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters);

}  // namespace tessera::dtensor
