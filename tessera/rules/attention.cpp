// Attention without [queries, keys] matrices and its gradient, tessera::attention and libtorch's fused kernel: samples and heads may be
// cut, positions and widths stay whole.
#include "tessera/rules/families.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/rules/local_args.h"
#include "tessera/rules/lookups.h"

namespace tessera::rules {

namespace {

struct Dims {
  TensorFactors query, key, value, out;
};

// Query heads are groups, one for each key head; a cut falls between groups.
Dims add_dims(FactorMap& map, const Call& call) {
  const auto sizes = [&](const char* name) -> const std::vector<int64_t>& {
    const layout::Spec& spec = call.spec(call.operand_of(name));
    TESSERA_CHECK(spec->ndim() == 4, "[attention] ", name, " of ", spec.str(), "; accepted: [samples, heads, positions, width]");
    return spec->sizes;
  };
  const auto &query = sizes("query"), &key = sizes("key"), &value = sizes("value");
  TESSERA_CHECK(key[1] > 0 && query[1] % key[1] == 0, "[attention] ", query[1], " query heads in groups of ", key[1], " key heads; accepted: a multiple");
  const int samples = map.add(query[0]), key_heads = map.add(key[1]);
  DimFactors heads = {key_heads};
  if (const int64_t times = query[1] / key[1]; times > 1) heads.push_back(map.add(times, /*can_shard=*/false));
  const auto whole = [&](int64_t extent) { return map.add(extent, /*can_shard=*/false); };
  const int queries = whole(query[2]), keys = whole(key[2]), width = whole(query[3]), value_width = whole(value[3]);
  return {.query = {{samples}, heads, {queries}, {width}},
          .key = {{samples}, {key_heads}, {keys}, {width}},
          .value = {{samples}, {key_heads}, {keys}, {value_width}},
          .out = {{samples}, heads, {queries}, {value_width}}};
}

void set_operands(FactorMap& map, const Call& call, const Dims& dims, const char* mask_name) {
  map.set_operand(call, "query", dims.query);
  map.set_operand(call, "key", dims.key);
  map.set_operand(call, "value", dims.value);
  const int operand = call.operand_of(mask_name);
  if (operand < 0) return;
  const TensorFactors all = {dims.query[0], dims.query[1], dims.query[2], dims.key[2]};
  const auto& sizes = call.spec(operand)->sizes;
  TESSERA_CHECK(sizes.size() <= 4, "[attention] a mask of ", sizes, "; accepted: what broadcasts to [samples, heads, queries, keys]");
  TensorFactors mask(all.end() - static_cast<int64_t>(sizes.size()), all.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) mask[d].clear();
  }
  map.set_operand(call, mask_name, mask);
}

FactorMap attention_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  set_operands(map, call, dims, "mask");
  map.outputs = {dims.out};
  return map;
}

FactorMap attention_backward_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  map.set_operand(call, "grad", dims.out);
  set_operands(map, call, dims, "mask");
  map.outputs = {dims.query, dims.key, dims.value};
  return map;
}

// The logarithms of the sums that the weights were divided by: one for each query.
TensorFactors log_sums_of(const Dims& dims) { return {dims.out[0], dims.out[1], dims.out[2]}; }

FactorMap fused_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  set_operands(map, call, dims, "attn_mask");
  map.outputs = {dims.out, log_sums_of(dims)};
  map.dtypes = {call.spec(0)->dtype, at::toOpMathType(call.spec(0)->dtype)};
  return map;
}

FactorMap fused_backward_map(const Call& call) {
  FactorMap map;
  const Dims dims = add_dims(map, call);
  map.set_operand(call, "grad_out", dims.out);
  set_operands(map, call, dims, "attn_mask");
  map.set_operand(call, "out", dims.out);
  map.set_operand(call, "logsumexp", log_sums_of(dims));
  map.outputs = {dims.query, dims.key, dims.value};
  return map;
}

// The kernels read rows as if their elements were neighbours, and take no tensors without any.
void run_fused(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor query = args.tensor("query");
  if (query.numel() > 0) {
    for (const char* name : {"grad_out", "query", "key", "value"}) {
      if (args.has(name) && args.tensor(name).stride(-1) != 1) {
        args[name] = args.tensor(name).contiguous();
      }
    }
    args.run();
    return;
  }
  const auto nothing = [&](size_t i) { return at::zeros(sizes_of(call.output_ranges[i]), query.options().dtype(call.outputs[i]->dtype)); };
  if (call.outputs.size() == 2) {
    args.give(nothing(0), nothing(1));
  } else {
    args.give(nothing(0), nothing(1), nothing(2));
  }
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu", {.map = fused_map, .local = run_fused, .shape = ShapeSource::kFactors});
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", {.map = fused_backward_map, .local = run_fused, .shape = ShapeSource::kFactors});
  table.add_optional("tessera::attention", {.map = attention_map, .shape = ShapeSource::kFactors});
  table.add_optional("tessera::attention_backward", {.map = attention_backward_map, .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
