// Attention as two operators of our own, for `exact` numerics: the bits of its parts, without the [queries, keys]
// matrices.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// What both directions read besides the tensors.
struct AttentionOptions {
  std::optional<at::Tensor> mask = std::nullopt;  // broadcasts to [samples, heads, queries, keys]; false hides a key,
                                                  // floating point is added to the scores
  bool is_causal = false;                         // not with a mask
  double scale = 1;
  // Lengths of the leaves of sums over keys, over queries, and over the query heads of one key head; 0: one leaf.
  std::array<int64_t, 3> leaves = {};
};

// Operator `tessera::attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale, int[]
// leaves)
// -> Tensor`: softmax(query key^T * scale, masked) value, of [samples, heads, positions, width] on CPU, in float32 or
// float64, or in 16 bits with all in float32 that is not an operand or a result. Query heads come in groups of equal
// size, one for each key head. Samples and key heads may be cut on a mesh. Differentiable in query, key and value, by
// tessera::attention_backward (same arguments behind `grad`, -> the three gradients); where gradients are
// differentiated again, or operands have tangents (forward mode), as attention_by_parts. The mask gets no gradient, and
// the backward operator has none.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options);

}  // namespace tessera::dtensor
