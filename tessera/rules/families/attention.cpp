// Attention without [queries, keys] matrices, tessera::attention and tessera::fused_attention, and its gradient:
// samples and heads may be cut, positions and widths stay whole.
#include "tessera/rules/families/families.h"

#include <ATen/OpMathType.h>

#include "tessera/base/error.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

struct Dims {
  TensorFactors query, key, value, out;
};

// Query heads are groups, one for each key head; a cut falls between groups.
Dims add_dims(FactorMap& map, const Call& call) {
  const auto sizes = [&](const char* name) -> const std::vector<int64_t>& {
    const layout::Spec& spec = call.spec(call.operand_of(name));
    TESSERA_CHECK(spec->ndim() == 4, "[attention] ", name, " of ", spec.str(),
                  "; accepted: [samples, heads, positions, width]");
    return spec->sizes;
  };
  const auto &query = sizes("query"), &key = sizes("key"), &value = sizes("value");
  TESSERA_CHECK(key[1] > 0 && query[1] % key[1] == 0, "[attention] ", query[1], " query heads in groups of ", key[1],
                " key heads; accepted: a multiple");
  const int samples = map.add(query[0]), key_heads = map.add(key[1]);
  DimFactors heads = {key_heads};
  if (const int64_t times = query[1] / key[1]; times > 1) {
    heads.push_back(map.add(times, /*can_shard=*/false));
  }
  const auto whole = [&](int64_t extent) { return map.add(extent, /*can_shard=*/false); };
  const int queries = whole(query[2]), keys = whole(key[2]), width = whole(query[3]), value_width = whole(value[3]);
  return {.query = {{samples}, heads, {queries}, {width}},
          .key = {{samples}, {key_heads}, {keys}, {width}},
          .value = {{samples}, {key_heads}, {keys}, {value_width}},
          .out = {{samples}, heads, {queries}, {value_width}}};
}

void set_operands(FactorMap& map, const Call& call, const Dims& dims) {
  map.set_operand(call, "query", dims.query);
  map.set_operand(call, "key", dims.key);
  map.set_operand(call, "value", dims.value);
  const int operand = call.has_arg("mask") ? call.operand_of("mask") : -1;
  if (operand < 0) {
    return;
  }
  const TensorFactors all = {dims.query[0], dims.query[1], dims.query[2], dims.key[2]};
  const auto& sizes = call.spec(operand)->sizes;
  TESSERA_CHECK(sizes.size() <= 4, "[attention] a mask of ", sizes,
                "; accepted: what broadcasts to [samples, heads, queries, keys]");
  TensorFactors mask(all.end() - static_cast<int64_t>(sizes.size()), all.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) {
      mask[d].clear();
    }
  }
  map.set_operand(call, "mask", mask);
}

FactorMap attention_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  set_operands(map, call, dims);
  map.outputs = {dims.out};
  return map;
}

FactorMap attention_backward_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  map.set_operand(call, "grad", dims.out);
  set_operands(map, call, dims);
  map.outputs = {dims.query, dims.key, dims.value};
  return map;
}

// The logarithms of the sums that the weights were divided by: one for each query.
TensorFactors log_sums_of(const Dims& dims) { return {dims.out[0], dims.out[1], dims.out[2]}; }

FactorMap fused_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  set_operands(map, call, dims);
  map.outputs = {dims.out, log_sums_of(dims)};
  map.dtypes = {call.spec(0)->dtype, at::toOpMathType(call.spec(0)->dtype)};
  return map;
}

FactorMap fused_backward_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  map.set_operand(call, "grad", dims.out);
  set_operands(map, call, dims);
  map.set_operand(call, "out", dims.out);
  map.set_operand(call, "log_sums", log_sums_of(dims));
  map.outputs = {dims.query, dims.key, dims.value};
  return map;
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add_optional("tessera::attention",
                     {.map = attention_map, .shape = ShapeSource::kFactors, .exact = exact::kAsIsNarrow});
  table.add_optional("tessera::attention_backward",
                     {.map = attention_backward_map, .shape = ShapeSource::kFactors, .exact = exact::kAsIsNarrow});
  table.add_optional("tessera::fused_attention", {.map = fused_map});
  table.add_optional("tessera::fused_attention_backward", {.map = fused_backward_map});
}

}  // namespace tessera::rules
