// libtorch's fused attention on the parts of DTensors: no [queries, keys] matrix is made.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// softmax(query key^T * scale, causal if asked) value, of [samples, heads, positions, width] on the CPU, by
// aten::_scaled_dot_product_flash_attention_for_cpu; as many query heads as key heads, one width. Samples and heads may
// be cut: the operators are `tessera::fused_attention` and its backward, whose results lie as those of the parts of
// attention would.
//
// Takes no mask: libtorch's gradients are wrong for a row that a mask leaves nothing, which layouts cannot tell.
// Differentiable; where gradients are differentiated again, as attention_by_parts. Not in forward mode.
at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool is_causal,
                           double scale);

}  // namespace tessera::dtensor
