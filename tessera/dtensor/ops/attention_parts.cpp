#include "tessera/dtensor/ops/attention_parts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Positions that come later than the query's, for as many queries and keys.
at::Tensor later_keys(const at::Tensor& scores) {
  return at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).triu(1);
}

}  // namespace

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t times = heads / x.size(-3);
  if (times == 1) {
    return x;
  }
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.end() - 2, times);
  return x.unsqueeze(-3).expand(sizes).flatten(-4, -3);
}

void verify_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& mask, const AttentionParts& options) {
  TESSERA_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2 && query.size(-1) == key.size(-1),
                "[scaled_dot_product_attention] query ", query.sizes(), ", key ", key.sizes(), ", value ",
                value.sizes(), "; accepted: [..., length, width] with one width of query and key");
  TESSERA_CHECK(!options.is_causal || !mask, "[scaled_dot_product_attention] takes a mask or is_causal, not both");
  TESSERA_CHECK(!options.with_groups ||
                    (query.dim() >= 3 && query.size(-3) % key.size(-3) == 0 && query.size(-3) % value.size(-3) == 0),
                "[scaled_dot_product_attention] ", query.sizes(), " query heads in groups of ", key.sizes(),
                "; accepted: a multiple of the key heads");
}

double attention_scale(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

at::Tensor attention_by_parts(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, const AttentionParts& options) {
  verify_attention(query, key, value, mask, options);
  if (options.widens && rules::is_narrow(query.scalar_type())) {
    return attention_by_parts(rules::widened(query), rules::widened(key), rules::widened(value),
                              mask ? std::optional(rules::widened(*mask)) : std::nullopt, options)
        .to(query.scalar_type());
  }
  const int64_t heads = options.with_groups ? query.size(-3) : 0;
  const at::Tensor keys = options.with_groups ? repeat_heads(key, heads) : key,
                   values = options.with_groups ? repeat_heads(value, heads) : value;
  at::Tensor scores = at::matmul(query, keys.transpose(-2, -1)) * attention_scale(query, options.scale);
  if (options.is_causal) {
    scores = scores.masked_fill(later_keys(scores), kNothing);
  }
  if (mask) {
    scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), kNothing) : scores + *mask;
  }
  const at::Tensor weights = mask ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
  return at::matmul(options.dropout > 0 ? at::dropout(weights, options.dropout, /*train=*/true) : weights, values);
}

std::array<at::Tensor, 3> gradients_by_parts(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                             const AttentionParts& options) {
  // Names of their own: one of the operands may have been computed from another.
  const std::array<at::Tensor, 3> operands = {query.alias(), key.alias(), value.alias()};
  const at::Tensor out = attention_by_parts(operands[0], operands[1], operands[2], mask, options);
  torch::autograd::variable_list wanted;
  std::copy_if(operands.begin(), operands.end(), std::back_inserter(wanted),
               [](const at::Tensor& x) { return x.requires_grad(); });
  const auto found = torch::autograd::grad({out}, wanted, {grad}, /*retain_graph=*/true, /*create_graph=*/true);
  std::array<at::Tensor, 3> gradients;
  size_t next = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (operands[i].requires_grad()) {
      gradients[i] = found[next++];
    }
  }
  return gradients;
}

}  // namespace tessera::dtensor
