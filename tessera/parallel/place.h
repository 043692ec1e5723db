// Turns a model's tensors into DTensors, in place.
#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tessera/plan/module_tree.h"
#include "tessera/plan/plan.h"

namespace tessera::parallel {

// Makes the model's parameters and buffers DTensors as the plan says, in place: typed members, tied aliases and an
// optimizer built before stay valid, and its state is converted too. A model from `deferred` gets its values now, each
// rank its own part; one built without it is accepted, with a warning that states the bytes that every rank held where
// they are many. Modules that the plan has recomputed are told so (dtensor::Recomputable). Throws PlanError if the plan
// does not fit the model, before anything is allocated if the model, with its gradients and the optimizer's state, does
// not fit the machine's memory, or if a parameter's memory has other owners. Collective over the plan's mesh.
void place(torch::nn::Module& model, const plan::Plan& plan, torch::optim::Optimizer* optimizer = nullptr);

// The same for the tensors of a model that is no C++ module (tensors_of), without its optimizer.
void place_tensors(const std::vector<plan::NamedTensor>& tensors, const plan::Plan& plan);

// Gives what an optimizer keeps for a placed parameter (a moment, a step count) the parameter's layout in the dims that
// it shares with it: of other sizes, as Adafactor's sums over rows are, it is cut where the parameter is cut in dims of
// equal size; of another number of dims, where rows are cut, if its first dim is the parameter's. Deferred or plain; a
// DTensor stays.
void place_state(const at::Tensor& state, const at::Tensor& parameter);

// The same as a tensor of its own: plain `state`, at which others may look, stays as it is.
at::Tensor placed_state(const at::Tensor& state, const at::Tensor& parameter);

}  // namespace tessera::parallel
