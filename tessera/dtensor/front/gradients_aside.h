// Gradients on their way to parameters: what backward passes do with them there, and those of a step's passes, which
// do not get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

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

struct PassesOfStep;

// The gradients of a step's passes on this rank, aside of the parameters' own.
class GradientsAside {
 public:
  // `parameters` must live longer. In `fast` those of their gradients that no group merges are offered to `takes` in
  // the passes, so that a pass need not hold a whole model's.
  GradientsAside(RankState& state, const std::vector<at::Tensor>& parameters, PassMerges merges, TakesGradient takes);
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // Of a pass, in the order of the parameters. Undefined: taken, or unused. Hooks of the program are not called.
  std::vector<at::Tensor> gradients_of(const at::Tensor& loss);

 private:
  class Pass;

  RankState& state_;
  const std::vector<at::Tensor>& parameters_;
  const std::shared_ptr<PassesOfStep> step_;
  std::vector<std::pair<const Meta*, at::Tensor>> aside_;  // merged in the pass that runs
};

}  // namespace tessera::dtensor
