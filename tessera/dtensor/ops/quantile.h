// Quantiles, of the operators that they are made of.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// `quantile` and `nanquantile` of DTensors. Those of libtorch read memory of what they compute, since 2.15.
void register_quantile_kernels(KernelRegistry& registry);

}  // namespace tessera::dtensor
