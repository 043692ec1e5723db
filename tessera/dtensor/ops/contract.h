// The operator tessera::contract (rules/engine/equation.h): the product of two tensors of any rank, so that layouts
// survive where libtorch would flatten.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// Makes `linear` and `matmul` of DTensors contractions: their decompositions flatten [batch, sequence, feature], which
// no layout with a cut sequence survives.
void register_contract_kernels(KernelRegistry& registry);

}  // namespace tessera::dtensor
