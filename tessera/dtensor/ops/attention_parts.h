// Attention of DTensors in its parts, whose layouts have rules.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

struct AttentionParts {
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;  // nothing: 1 / sqrt(width)
  bool with_groups = false;                    // there may be more query heads than key heads
  bool widens = false;                         // of 16 bits all parts are in float32, and the result is rounded
};

// softmax(query key^T * scale + mask) value as products and a softmax: arguments, values and errors of libtorch's
// scaled_dot_product_attention. Rows that a mask leaves nothing are zero.
at::Tensor attention_by_parts(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, const AttentionParts& options);

// The gradients of its query, key and value at `grad`, to be differentiated again; undefined for those that require
// none.
std::array<at::Tensor, 3> gradients_by_parts(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                             const AttentionParts& options);

// Throws if the operands are none of such an attention.
void verify_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& mask, const AttentionParts& options);

// The scale, or 1 / sqrt(width).
double attention_scale(const at::Tensor& query, std::optional<double> scale);

// Each head of [..., heads, positions, width] as often as there are query heads for it.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads);

}  // namespace tessera::dtensor
