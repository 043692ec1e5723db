// Attention of DTensors as products and a softmax, whose layouts have rules.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// Makes `scaled_dot_product_attention` of DTensors softmax(q k^T * scale + mask) v, above autograd: libtorch's fused kernels
// know one device. Takes all its arguments; rows that a mask leaves nothing are zero.
void register_attention_kernel(KernelRegistry& registry);

}  // namespace tessera::dtensor
