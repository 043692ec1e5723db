#include "tessera/nn/attention.h"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace tessera::nn {

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionOptions& options) {
  const double dropout = options.training ? options.dropout : 0.0;
  const int64_t earlier = k.size(-2) - q.size(-2);
  if (options.fused && earlier == 0) {
    return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor later = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).triu(earlier + 1);
  if (options.fused) {
    return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/later.logical_not(), dropout);
  }
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) * scale;
  const at::Tensor weights = scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(dropout > 0 ? at::dropout(weights, dropout, /*train=*/true) : weights, v);
}

at::Tensor repeat_heads(const at::Tensor& x, int64_t group) {
  if (group == 1) {
    return x;
  }
  return x.unsqueeze(2).expand({-1, -1, group, -1, -1}).flatten(1, 2);
}

}  // namespace tessera::nn
