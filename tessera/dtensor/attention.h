// Attention of DTensors: in its parts, whose layouts have rules, or in `exact` numerics by blocks.
#pragma once

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

// Makes `scaled_dot_product_attention` of DTensors that, above autograd: libtorch's fused kernels know one device. In `exact`
// numerics calls without dropout, of [samples, heads, positions, width] whose positions and widths are whole and whose heads
// are cut between groups, run as tessera::attention instead (attention_op.h), which has the same bits.
void register_attention_kernel(KernelRegistry& registry);

}  // namespace tessera::dtensor
