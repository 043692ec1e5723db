// Complex numbers: made from pairs of reals, read as such, and Fourier transforms.
#include "tessera/rules/families/families.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/zeros.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"

namespace tessera::rules {

namespace {

c10::ScalarType complex_dtype(const Call& call) { return c10::toComplexType(call.spec(0)->dtype); }

// One complex number from the two reals at each place.
FactorMap pair_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  map.dtypes = {complex_dtype(call)};
  return map;
}

FactorMap conjugate_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  map.partial = PartialFlow::kLinear;
  return map;
}

// [...] and [..., 2]
FactorMap as_real_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  map.outputs = map.operands;
  map.outputs[0].push_back({map.add(2, false)});
  return map;
}

FactorMap as_complex_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  map.block(map.operands[0].back());
  map.outputs = {TensorFactors(map.operands[0].begin(), map.operands[0].end() - 1)};
  return map;
}

// Dims that are transformed stay whole; the last of them is `last` long in the result.
FactorMap transform_map(const Call& call, c10::ScalarType dtype, std::optional<int64_t> last) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  map.dtypes = {dtype};
  map.operands = {map.add_all(call.spec(0)->sizes)};
  const std::vector<int64_t> dims = call.ints("dim");
  for (int64_t dim : dims) {
    map.block(map.operands[0].at(wrap_dim(dim, call.dim_of(0))));
  }
  map.outputs = map.operands;
  if (last) {
    map.outputs[0].at(wrap_dim(dims.back(), call.dim_of(0))) = {map.add(*last, false)};
  }
  return map;
}

FactorMap from_real_map(const Call& call) {
  const int64_t size = call.spec(0)->sizes.at(wrap_dim(call.ints("dim").back(), call.dim_of(0)));
  return transform_map(call, complex_dtype(call), call.flag("onesided") ? size / 2 + 1 : size);
}

FactorMap to_real_map(const Call& call) {
  return transform_map(call, c10::toRealValueType(call.spec(0)->dtype), call.integer("last_dim_size"));
}

FactorMap complex_map(const Call& call) { return transform_map(call, call.spec(0)->dtype, std::nullopt); }

// The dims with those that are transformed at the end. Of transforms from or to reals the last one stays last: it is
// the halved one.
std::vector<int64_t> transform_order(const std::string& op, int64_t ndim, std::vector<int64_t> dims) {
  std::sort(dims.begin(), dims.end() - (op == "aten::_fft_c2c" ? 0 : 1));
  std::vector<int64_t> order;
  for (int64_t d = 0; d < ndim; ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      order.push_back(d);
    }
  }
  order.insert(order.end(), dims.begin(), dims.end());
  return order;
}

bool is_inside(const Call& call) {
  const std::vector<int64_t> dims = call.ints("dim");
  return !dims.empty() && !std::ranges::is_sorted(transform_order(call.name, call.dim_of(0), dims));
}

// Results lie in memory as libtorch's do: what was transformed innermost.
void transform_innermost(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto order = transform_order(op.operator_name().name, self.dim(), args["dim"].toIntVector());
  std::vector<int64_t> dims(args["dim"].toIntVector().size()), back(order.size());
  std::iota(dims.begin(), dims.end(), self.dim() - static_cast<int64_t>(dims.size()));
  for (size_t i = 0; i < order.size(); ++i) {
    back[order[i]] = static_cast<int64_t>(i);
  }
  args["self"] = self.permute(order);
  args["dim"] = c10::IValue(dims);
  args.run();
  stack.back() = stack.back().toTensor().permute(back);
}

// Libraries of transforms refuse to make none.
void run_transform(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const std::vector<int64_t> sizes = sizes_of(call.output_ranges[0]);
  const at::Tensor self = args.tensor("self");
  if (c10::multiply_integers(sizes) > 0 && self.numel() > 0) {
    args.run();
  } else {
    args.give_value(at::zeros(sizes, self.options().dtype(call.outputs[0]->dtype)));
  }
}

Rule transform(FactorMap (*map)(const Call&)) {
  return {.map = map,
          .local = run_transform,
          .decompose = transform_innermost,
          .decompose_when = is_inside,
          .shape = ShapeSource::kFactors};
}

}  // namespace

void add_complex_rules(RuleTable& table) {
  table.add_all({"aten::complex", "aten::polar"}, {.map = pair_map, .shape = ShapeSource::kFactors});
  table.add_all({"aten::_conj_physical", "aten::conj_physical_"},
                {.map = conjugate_map, .shape = ShapeSource::kFactors});
  table.add("aten::view_as_real", {.map = as_real_map, .view = View::kReal});
  table.add("aten::view_as_real_copy", {.map = as_real_map});
  table.add("aten::view_as_complex", {.map = as_complex_map, .view = View::kComplex});
  table.add("aten::view_as_complex_copy", {.map = as_complex_map});
  table.add("aten::_conj", {.special = Special::kConjugate, .view = View::kConjugate});
  table.add("aten::_fft_r2c", transform(from_real_map));
  table.add("aten::_fft_c2r", transform(to_real_map));
  table.add("aten::_fft_c2c", transform(complex_map));
}

}  // namespace tessera::rules
