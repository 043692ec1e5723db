// Gradients that are merged as soon as a backward pass has them: by one collective those of parameters that are
// gathered together.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Whether the parameter's policy says that its gradients are merged in each pass; and whether over the axes that a
// group gathers.
bool merges_in_pass(const at::Tensor& parameter);
bool merges_in_group(const at::Tensor& parameter);

// What a pass that has the gradient of such a parameter hands on: it, merged; or nothing, if it `may_hold` it, while
// its group waits for others: those of a group go to their parameters together, or aside. Collective over the axes of
// the policy, in backward passes.
std::vector<at::Tensor> merged_in_pass(RankState& state, const at::Tensor& parameter,
                                       const std::vector<at::Tensor>& gradients, bool may_hold);

// A gradient that is a view of another (of the product that a transposition follows) would keep that one and its sums.
at::Tensor without_base(const at::Tensor& gradient);
void let_go_of_bases(std::vector<at::Tensor>& gradients);

// Merges the gradients of a step, each into the layout of its parameter, over the axes that they are still sums over:
// many by few collectives. Undefined ones, and those that lie so, are left alone. Collective over these axes.
void merge_step(RankState& state, std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& parameters);

}  // namespace tessera::dtensor
