// Fused attention: samples and heads are independent.
#include "tessera/rules/families.h"

namespace tessera::rules {

namespace {

struct AttentionFactors {
  TensorFactors query;   // [b, h, s, e]
  TensorFactors keys;    // [b, hk, t, e]
  TensorFactors values;  // [b, hk, t, v]
  TensorFactors output;  // [b, h, s, v]
  TensorFactors rows;    // [b, h, s]
};

// Operands `first`... are query, key and value.
AttentionFactors add_factors(FactorMap& map, const Call& call, size_t first) {
  AttentionFactors f;
  f.query = map.add_all(call.spec(first)->sizes);
  const auto& keys = call.spec(first + 1)->sizes;
  const bool shares_heads = keys.at(1) != call.spec(first)->sizes.at(1);
  const DimFactors key_heads = shares_heads ? DimFactors{map.add(keys[1], false)} : f.query[1];
  const DimFactors length = {map.add(keys.at(2), false)};
  const DimFactors width = {map.add(call.spec(first + 2)->sizes.at(3), false)};
  f.keys = {f.query[0], key_heads, length, f.query[3]};
  f.values = {f.query[0], key_heads, length, width};
  f.output = {f.query[0], f.query[1], f.query[2], width};
  f.rows = {f.query[0], f.query[1], f.query[2]};
  map.block(f.query[2]);
  map.block(f.query[3]);
  if (shares_heads) {
    map.block(f.query[1]);
  }
  return f;
}

// A mask broadcasts to [b, h, s, t].
void add_mask(FactorMap& map, const Call& call, const AttentionFactors& f) {
  const int mask = call.operand_of("attn_mask");
  if (mask < 0) {
    return;
  }
  const TensorFactors scores = {f.query[0], f.query[1], f.query[2], f.keys[2]};
  const auto& sizes = call.spec(mask)->sizes;
  TensorFactors tensor(scores.end() - static_cast<int64_t>(sizes.size()), scores.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && map.factors[tensor[d].front()].extent != 1) {
      tensor[d].clear();
    }
  }
  map.operands.push_back(std::move(tensor));
}

FactorMap forward_map(const Call& call) {
  FactorMap map;
  const AttentionFactors f = add_factors(map, call, 0);
  map.operands = {f.query, f.keys, f.values};
  add_mask(map, call, f);
  map.outputs = {f.output, f.rows};
  return map;
}

FactorMap backward_map(const Call& call) {
  FactorMap map;
  const AttentionFactors f = add_factors(map, call, 1);
  map.operands = {f.output, f.query, f.keys, f.values, f.output, f.rows};
  add_mask(map, call, f);
  map.outputs = {f.query, f.keys, f.values};
  return map;
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu", {.map = forward_map});
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", {.map = backward_map});
}

}  // namespace tessera::rules
