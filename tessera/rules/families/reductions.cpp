// Operators that combine the elements of dims into one.
#include "tessera/rules/families/families.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/Dispatch.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>

#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

using layout::ReduceOp;

// The dims that a call reduces: those of `dim`, or all.
std::vector<int64_t> reduced_dims(const Call& call) {
  if (call.has_arg("dim")) {
    const bool reduces_none = call.name.ends_with(".dims") && call.arg("dim").isIntList() && call.ints("dim").empty();
    return reduces_none ? std::vector<int64_t>() : call.dims("dim", call.dim_of(0));
  }
  std::vector<int64_t> all(call.dim_of(0));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// One operand; its reduced dims are absent from every output, or `1` where keepdim says so.
FactorMap reduce_map(const Call& call, ReduceOp op, PartialFlow flow) {
  FactorMap map;
  map.partial = flow;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  const bool keeps = call.has_arg("keepdim") && call.flag("keepdim");
  TensorFactors out = map.operands[0];
  const std::vector<int64_t> dims = reduced_dims(call);
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    map.factors[map.operands[0][*dim].front()].reduce = op;
    keeps ? out[*dim].clear() : (void)out.erase(out.begin() + *dim);
  }
  map.outputs.assign(std::max<size_t>(call.outputs.size(), 1), out);
  return map;
}

Rule reduction(ReduceOp op, LocalKernel local = nullptr, ShapeSource shape = ShapeSource::kMeta) {
  return {.map = [op](const Call& call) { return reduce_map(call, op, PartialFlow::kMerge); },
          .local = local,
          .shape = shape};
}

// For operators without a meta kernel: `dtypes(call)` are those of the results.
template <typename Map, typename Dtypes>
Rule rule_of_reduction(Map make_map, Dtypes dtypes) {
  return {.map =
              [make_map, dtypes](const Call& call) {
                FactorMap map = make_map(call);
                map.dtypes = dtypes(call);
                map.outputs.resize(map.dtypes.size(), map.outputs.front());
                return map;
              },
          .shape = ShapeSource::kFactors};
}

using Dtypes = std::vector<c10::ScalarType>;

Dtypes same_dtype(const Call& call) { return {asked_dtype(call, call.spec(0)->dtype)}; }
Dtypes real_dtypes(const Call& call) { return {c10::toRealValueType(call.spec(0)->dtype)}; }
Dtypes real_and_same_dtype(const Call& call) {
  return {c10::toRealValueType(call.spec(0)->dtype), call.spec(0)->dtype};
}
Dtypes value_and_index(const Call& call) { return {call.spec(0)->dtype, c10::kLong}; }
Dtypes long_dtype(const Call&) { return {c10::kLong}; }
Dtypes floating(const Call& call) { return {fractional_dtype(call.spec(0)->dtype)}; }

// Sums and products of integers are long.
Dtypes accumulated(const Call& call) {
  const auto dtype = call.spec(0)->dtype;
  return {asked_dtype(call, c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::kLong : dtype)};
}

// What needs its dims whole.
FactorMap whole_map(const Call& call) {
  FactorMap map = reduce_map(call, ReduceOp::kSum, PartialFlow::kMerge);
  for (int64_t dim : reduced_dims(call)) {
    map.block(map.operands[0][dim]);
  }
  return map;
}

// A sum to a narrower type rounds each part.
FactorMap sum_map(const Call& call) {
  const auto to = accumulated(call).front();
  const bool keeps = c10::promoteTypes(call.spec(0)->dtype, to) == to;
  return reduce_map(call, ReduceOp::kSum, keeps ? PartialFlow::kLinear : PartialFlow::kMerge);
}

// A mean is a sum divided by the number of elements of the whole, so that parts add up, however uneven.
void run_mean(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor self = args.tensor("self");
  const auto& whole = call.operands[0]->sizes;
  const auto dtype = args["dtype"].toOptional<c10::ScalarType>();
  std::vector<int64_t> dims;
  bool keeps = false;
  if (args.has("dim")) {
    dims = args["dim"].isNone() ? dims : args["dim"].toIntVector();
    keeps = args["keepdim"].toBool();
  }
  int64_t count = 1;
  for (size_t i = 0; i < (dims.empty() ? whole.size() : dims.size()); ++i) {
    count *= whole.empty() ? 1 : whole[dims.empty() ? static_cast<int64_t>(i) : wrap_dim(dims[i], whole.size())];
  }
  args.give_value(at::sum(self, dims, keeps, dtype).div_(count));
}

// The element that changes no maximum (minimum).
c10::Scalar identity_of(c10::ScalarType dtype, bool of_max) {
  if (c10::isFloatingType(dtype)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return of_max ? -infinity : infinity;
  }
  if (dtype == c10::kBool) {
    return !of_max;
  }
  return AT_DISPATCH_INTEGRAL_TYPES(dtype, "identity_of", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    return c10::Scalar(static_cast<int64_t>(of_max ? Limits::lowest() : Limits::max()));
  });
}

// torch has no maximum of nothing; a rank without elements has the identity.
void run_extreme(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor self = args.tensor("self");
  if (self.numel() != 0 || call.operands[0]->numel() == 0) {
    args.run();
    return;
  }
  std::vector<int64_t> sizes;
  for (const layout::Range& range : call.output_ranges[0]) {
    sizes.push_back(range.size());
  }
  const std::string& name = call.op->operator_name().name;
  args.give_value(at::full(sizes, identity_of(self.scalar_type(), name.ends_with("max")), self.options()));
}

// cumsum and the like run along a dim.
FactorMap scan_map(const Call& call, PartialFlow flow) {
  FactorMap map;
  map.partial = flow;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  if (call.dim_of(0) > 0) {
    map.block(map.operands[0][wrap_dim(call.integer("dim"), call.dim_of(0))]);
  }
  map.outputs.assign(call.schema->returns().size(), map.operands[0]);
  return map;
}

FactorMap merged_scan_map(const Call& call) { return scan_map(call, PartialFlow::kMerge); }
FactorMap count_map(const Call& call) { return reduce_map(call, ReduceOp::kSum, PartialFlow::kMerge); }
FactorMap product_map(const Call& call) { return reduce_map(call, ReduceOp::kProd, PartialFlow::kMerge); }

bool reduces_sharded(const Call& call) {
  const std::vector<int64_t> dims = reduced_dims(call);
  return std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return call.spec(0)->is_cut(dim); });
}

bool reduces_sharded_reals(const Call& call) {
  return reduces_sharded(call) && !c10::isComplexType(call.spec(0)->dtype);
}

// What the square of a complex number is of in norms and variances.
at::Tensor magnitude(const at::Tensor& x) { return x.is_complex() ? at::abs(x) : x; }

// The arguments that reductions share, as a decomposition reads them.
struct Reduction {
  at::Tensor self;
  std::vector<int64_t> dims;
  bool keeps = false;

  explicit Reduction(StackArgs& args) : self(args.tensor("self")) {
    if (args.has("dim") && !args["dim"].isNone()) {
      dims = args["dim"].isInt() ? std::vector<int64_t>{args["dim"].toInt()} : args["dim"].toIntVector();
    }
    if (dims.empty()) {
      dims.resize(self.dim());
      std::iota(dims.begin(), dims.end(), 0);
    }
    keeps = args.has("keepdim") && args["keepdim"].toBool();
    if (args.has("dtype") && !args["dtype"].isNone()) {
      self = self.to(args["dtype"].toScalarType());
    }
  }

  at::Tensor sum(const at::Tensor& of) const { return at::sum(of, dims, keeps); }
};

void decompose_logsumexp(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const Reduction over(args);
  const at::Tensor x = c10::isFloatingType(over.self.scalar_type()) ? over.self : over.self.to(c10::kFloat);
  at::Tensor largest = at::amax(x, over.dims, /*keepdim=*/true);
  largest = largest.masked_fill(largest.isinf(), 0);
  const at::Tensor total = over.sum(at::exp(x.sub(largest)));
  args.give_value(at::log(total).add(over.keeps ? largest : largest.squeeze(over.dims)));
}

void decompose_norm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const Reduction over(args);
  const c10::IValue& order = args[args.has("ord") ? "ord" : "p"];
  const double p = order.isNone() ? 2.0 : order.toScalar().toDouble();
  const at::Tensor x = magnitude(over.self);
  at::Tensor result;
  if (p == 2) {
    result = at::sqrt(over.sum(x.mul(x)));
  } else if (p == 1) {
    result = over.sum(at::abs(x));
  } else if (p == 0) {
    result = over.sum(at::ne(x, 0).to(x.scalar_type()));
  } else if (std::isinf(p)) {
    result = p > 0 ? at::amax(at::abs(x), over.dims, over.keeps) : at::amin(at::abs(x), over.dims, over.keeps);
  } else {
    result = at::pow(over.sum(at::pow(at::abs(x), p)), 1 / p);
  }
  args.give_value(result);
}

struct Moments {
  at::Tensor variance;
  at::Tensor mean;
};

Moments moments_of(StackArgs& args) {
  const Reduction over(args);
  const double correction = args["correction"].isNone() ? 1 : args["correction"].toScalar().toDouble();
  double count = 1;
  for (int64_t dim : over.dims) {
    count *= static_cast<double>(over.self.dim() == 0 ? 1 : over.self.size(dim));
  }
  const at::Tensor mean = at::mean(over.self, over.dims, /*keepdim=*/true);
  const at::Tensor centred = magnitude(over.self.sub(mean));
  return {over.sum(centred.mul(centred)).div(std::max(0.0, count - correction)),
          over.keeps ? mean : mean.squeeze(over.dims)};
}

void decompose_var(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor variance = moments_of(args).variance;
  args.give_value(op.operator_name().name.starts_with("aten::std") ? at::sqrt(variance) : variance);
}

void decompose_var_mean(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const Moments moments = moments_of(args);
  args.give(op.operator_name().name.starts_with("aten::std") ? at::sqrt(moments.variance) : moments.variance,
            moments.mean);
}

Rule decomposed(Decomposition decompose, Rule rule, bool (*when)(const Call&) = reduces_sharded) {
  rule.decompose = decompose;
  rule.decompose_when = when;
  return rule;
}

bool is_of_samples(const Call& call, int64_t dim) {
  const auto& labels = call.spec(0)->labels;
  return !labels.empty() && counts_samples(labels[dim]);
}

// The dims that a sum adds up, of more than one element or of samples: a micro-batch of one is part of a step too.
std::vector<int64_t> long_dims(const Call& call) {
  std::vector<int64_t> all;
  const auto& sizes = call.spec(0)->sizes;
  const auto dims = call.has_arg("dim") ? call.dims("dim", call.dim_of(0)) : std::vector<int64_t>();
  for (int64_t d = 0; d < call.dim_of(0); ++d) {
    const bool reduced = !call.has_arg("dim") || std::find(dims.begin(), dims.end(), d) != dims.end();
    if (reduced && (sizes[d] != 1 || is_of_samples(call, d))) {
      all.push_back(d);
    }
  }
  return all;
}

// A sum of one dim, or over the tokens of samples, is one tree; so is one whose samples are innermost, as they come
// last. Others are taken apart, the innermost dim first.
bool sums_several(const Call& call) {
  const auto dims = long_dims(call);
  if (!dims.empty() && is_of_samples(call, dims.back())) {
    return false;
  }
  const auto& labels = call.spec(0)->labels;
  const bool over_samples =
      std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return is_of_samples(call, dim); });
  const auto others = std::count_if(dims.begin(), dims.end(), [&](int64_t dim) {
    const bool of_tokens =
        over_samples && !labels.empty() && (counts_samples(labels[dim]) || counts_positions(labels[dim]));
    return !of_tokens;
  });
  return others + (over_samples ? 1 : 0) > 1;
}

// A mean over samples would divide by those of the micro-batch, not of the step.
bool is_mean_of_step(const Call& call) {
  for (int64_t dim : long_dims(call)) {
    if (!is_of_samples(call, dim)) {
      continue;
    }
    for (const layout::Factor& factor : call.spec(0)->labels[dim]) {
      if (factor.extent != factor.total) {
        return false;
      }
    }
  }
  return true;
}

bool is_euclidean(const Call& call) {
  const c10::IValue& order = call.arg(call.has_arg("p") ? "p" : "ord");
  return order.isScalar() && order.toScalar().equal(2);
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table.add_all({"aten::sum", "aten::sum.dim_IntList"}, {.map = sum_map,
                                                         .exact = {{.decompose = exact::decompose_sum,
                                                                    .decompose_when = sums_several,
                                                                    .node = exact::sum_node,
                                                                    .sample = exact::sum_sample}},
                                                         .carry = Carry::kInFirst});
  table.add("aten::nansum", rule_of_reduction(sum_map, accumulated));
  table.add_all({"aten::mean", "aten::mean.dim"},
                {.map = sum_map,
                 .local = run_mean,
                 .exact = {{.decompose = exact::decompose_mean, .accepts = is_mean_of_step}},
                 .caught = Caught::kMean});
  table.add_all({"aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, rule_of_reduction(count_map, long_dtype));
  table.add("aten::amax", reduction(ReduceOp::kMax, run_extreme).in_exact(exact::kAsIsNarrow));
  table.add("aten::amin", reduction(ReduceOp::kMin, run_extreme).in_exact(exact::kAsIsNarrow));
  table.add("aten::max", reduction(ReduceOp::kMax, run_extreme, ShapeSource::kFactors).in_exact(exact::kAsIsNarrow));
  table.add("aten::min", reduction(ReduceOp::kMin, run_extreme, ShapeSource::kFactors).in_exact(exact::kAsIsNarrow));
  table.add("aten::any", reduction(ReduceOp::kMax).in_exact(exact::kAsIsNarrow));
  table.add_all({"aten::any.dim", "aten::any.dims", "aten::_is_any_true"}, reduction(ReduceOp::kMax));
  table.add("aten::all", reduction(ReduceOp::kMin).in_exact(exact::kAsIsNarrow));
  table.add_all({"aten::all.dim", "aten::all.dims", "aten::_is_all_true"}, reduction(ReduceOp::kMin));
  table.add("aten::prod", rule_of_reduction(product_map, accumulated));
  table.add("aten::prod.dim_int", reduction(ReduceOp::kProd).in_exact(exact::kPerSample));
  table.add_all({"aten::argmax", "aten::argmin"}, {.map = whole_map, .exact = exact::kAsIsNarrow});
  table.add_all({"aten::max.dim", "aten::min.dim", "aten::aminmax"}, {.map = whole_map});
  table.add_all({"aten::median", "aten::nanmedian"}, rule_of_reduction(whole_map, same_dtype));
  table.add_all({"aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::kthvalue"},
                rule_of_reduction(whole_map, value_and_index));
  table.add("aten::cumsum",
            {.map = [](const Call& call) { return scan_map(call, PartialFlow::kLinear); }, .exact = exact::kPerSample});
  table.add("aten::cumprod", {.map = merged_scan_map, .exact = exact::kPerSample});
  table.add_all({"aten::sort", "aten::sort.stable"}, {.map = merged_scan_map});
  table.add("aten::logcumsumexp", rule_of_reduction(merged_scan_map, same_dtype).in_exact(exact::kPerSample));
  table.add_all({"aten::cummax", "aten::cummin"}, rule_of_reduction(merged_scan_map, value_and_index));
  table.add("aten::logsumexp",
            decomposed(decompose_logsumexp, rule_of_reduction(whole_map, floating), reduces_sharded_reals)
                .in_exact(exact::kPerSample));
  const Rule norm = decomposed(decompose_norm, {.map = whole_map, .reads_numbers = true});
  table.add_all({"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim"},
                norm.in_exact({.decompose = exact::decompose_norm, .accepts = is_euclidean}));
  table.add_all({"aten::norm.ScalarOpt_dim_dtype", "aten::norm.ScalarOpt_dtype"}, norm);
  table.add_all({"aten::var.correction", "aten::std.correction"},
                decomposed(decompose_var, rule_of_reduction(whole_map, real_dtypes)).in_exact(exact::kPerSample));
  table.add_all(
      {"aten::var_mean.correction", "aten::std_mean.correction"},
      decomposed(decompose_var_mean, rule_of_reduction(whole_map, real_and_same_dtype)).in_exact(exact::kPerSample));
}

}  // namespace tessera::rules
