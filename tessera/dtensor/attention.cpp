#include "tessera/dtensor/attention.h"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/registry.h"

namespace tessera::dtensor {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Each head as often as there are query heads for it.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t times = heads / x.size(-3);
  if (times == 1) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.end() - 2, times);
  return x.unsqueeze(-3).expand(sizes).flatten(-4, -3);
}

// Positions that come later than the query's, for as many queries and keys.
at::Tensor later_keys(const at::Tensor& scores) {
  return at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).triu(1);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
                     double dropout, bool is_causal, std::optional<double> scale, bool with_groups) {
  TESSERA_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2 && query.size(-1) == key.size(-1), "[scaled_dot_product_attention] query ",
                query.sizes(), ", key ", key.sizes(), ", value ", value.sizes(), "; accepted: [..., length, width] with one width of query and key");
  TESSERA_CHECK(!is_causal || !mask, "[scaled_dot_product_attention] takes a mask or is_causal, not both");
  TESSERA_CHECK(!with_groups || (query.dim() >= 3 && query.size(-3) % key.size(-3) == 0 && query.size(-3) % value.size(-3) == 0),
                "[scaled_dot_product_attention] ", query.sizes(), " query heads in groups of ", key.sizes(), "; accepted: a multiple of the key heads");
  const at::Tensor keys = with_groups ? repeat_heads(key, query.size(-3)) : key, values = with_groups ? repeat_heads(value, query.size(-3)) : value;
  at::Tensor scores = at::matmul(query, keys.transpose(-2, -1)) * scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  if (is_causal) scores = scores.masked_fill(later_keys(scores), kNothing);
  if (mask) scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), kNothing) : scores + *mask;
  const at::Tensor weights = mask ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
  return at::matmul(dropout > 0 ? at::dropout(weights, dropout, /*train=*/true) : weights, values);
}

}  // namespace

void register_attention_kernel(KernelRegistry& registry) {
  registry.library("aten", c10::DispatchKey::AutogradPrivateUse3).impl("scaled_dot_product_attention", TORCH_FN(attention));
}

}  // namespace tessera::dtensor
