// Attention of DTensors: in its parts, whose layouts have rules, or by kernels that make no [queries, keys] matrix.
#pragma once

namespace tessera::dtensor {

class KernelRegistry;

// Makes `scaled_dot_product_attention` of DTensors that, above autograd: libtorch's fused kernels know one device.
//
// Calls without dropout, of [samples, heads, positions, width] whose positions and widths are whole and whose heads are
// cut between groups, hold no [queries, keys] matrix. In `fast` numerics those without a mask and of one width run as
// libtorch's fused kernel on the parts (fused_attention.h); others, and all in `exact`, as tessera::attention
// (attention_op.h) in float32 and float64, which has the bits of the parts.
void register_attention_kernel(KernelRegistry& registry);

}  // namespace tessera::dtensor
