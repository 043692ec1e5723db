// Layers that libtorch runs through oneDNN, of the operators that they are made of.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// `lstm` of DTensors.
void register_recurrent_kernels(KernelRegistry& registry);

}  // namespace tessera::dtensor
