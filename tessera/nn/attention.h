// Causal attention, and heads shared by a group of queries.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

struct AttentionOptions {
  double dropout = 0;  // on the probabilities, while training
  bool training = false;
  bool fused = false;  // libtorch's scaled_dot_product_attention instead of the five plain ops
};

// softmax(q k^T / sqrt(head_dim), positions after the query's own masked out) v, for [batch, heads, length, head_dim].
// With more keys than queries the queries are the last positions: the earlier keys come from a cache.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionOptions& options = {});

// Each head of [batch, heads, length, head_dim] `group` times in a row: grouped-query keys and values for every query
// head.
at::Tensor repeat_heads(const at::Tensor& x, int64_t group);

}  // namespace tessera::nn
