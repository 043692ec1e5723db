// Attention of DTensors: in its parts, whose layouts have rules, or by kernels that make no [queries, keys] matrix.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

class KernelRegistry;

struct AttentionParts {
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;  // nothing: 1 / sqrt(width)
  bool with_groups = false;  // there may be more query heads than key heads
};

// softmax(query key^T * scale + mask) value as products and a softmax: arguments, values and errors of libtorch's
// scaled_dot_product_attention. Rows that a mask leaves nothing are zero.
at::Tensor attention_by_parts(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
                              const AttentionParts& options);

// The gradients of its query, key and value at `grad`, to be differentiated again; undefined for those that require none.
std::array<at::Tensor, 3> gradients_by_parts(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const std::optional<at::Tensor>& mask, const AttentionParts& options);

// Makes `scaled_dot_product_attention` of DTensors that, above autograd: libtorch's fused kernels know one device.
//
// Calls without dropout, of [samples, heads, positions, width] whose positions and widths are whole and whose heads are cut between
// groups, hold no [queries, keys] matrix. In `fast` numerics those without a mask and of one width run as libtorch's fused kernel on the
// parts (fused_attention.h); others, and all in `exact`, as tessera::attention (attention_op.h) in float32 and float64, which has the
// bits of the parts.
void register_attention_kernel(KernelRegistry& registry);

}  // namespace tessera::dtensor
