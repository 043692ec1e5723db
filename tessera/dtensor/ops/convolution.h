// Convolutions whose parameters are read in another dtype than they are stored in.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// Has libtorch's composites `conv1d`, `conv2d` and `conv3d` take a bias whose own dtype is not the input's, where the
// plan has it read in another.
void register_convolution_kernels(KernelRegistry& registry);

}  // namespace tessera::dtensor
