// The product of two tensors as one operator of any rank, so that layouts survive where libtorch would flatten.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

class KernelRegistry;

// Operator `tessera::contract(Tensor a, Tensor b, str equation, Tensor? like=None) -> Tensor`: an einsum of two operands,
// `bsk,jk->bsj`. One letter for each dim; letters that the result lacks are summed; no letter stands twice in one operand;
// every letter of the result stands in an operand, and every summed letter in both. `like` only says how the result should lie on the mesh.
// Differentiable any number of times: its gradients are contractions.
at::Tensor contract(const at::Tensor& a, const at::Tensor& b, std::string_view equation, const std::optional<at::Tensor>& like = std::nullopt);

// Makes `linear` and `matmul` of DTensors contractions: their decompositions flatten [batch, sequence, feature], which no
// layout with a cut sequence survives.
void register_contract_kernels(KernelRegistry& registry);

}  // namespace tessera::dtensor
