#include "tessera/rules/exact.h"

#include "tessera/base/error.h"
#include "tessera/rules/exact_kernels.h"

namespace tessera::rules {

namespace {

using layout::DimLabels;
using layout::Label;
using Table = std::unordered_map<std::string_view, ExactRule>;

bool has_label(const DimLabels& labels, Label label) {
  return std::any_of(labels.begin(), labels.end(), [&](const layout::Factor& factor) { return factor.label == label; });
}

// Operators that move values, make them, or combine elements by IEEE operations: the ordinary kernel is exact.
constexpr std::string_view kStock[] = {
    "aten::_reshape_alias", "aten::_to_copy", "aten::_unsafe_view", "aten::abs", "aten::add.Scalar", "aten::add.Tensor",
    "aten::addcdiv", "aten::addcmul", "aten::alias", "aten::all", "aten::amax", "aten::amin", "aten::any", "aten::argmax",
    "aten::argmin", "aten::bitwise_and.Tensor", "aten::bitwise_not", "aten::bitwise_or.Tensor", "aten::cat", "aten::ceil",
    "aten::clamp", "aten::clamp.Tensor", "aten::clamp_max", "aten::clamp_min", "aten::clone", "aten::constant_pad_nd",
    "aten::copy", "aten::copy_", "aten::cos", "aten::diagonal", "aten::div.Scalar", "aten::div.Tensor", "aten::empty_like",
    "aten::eq.Scalar", "aten::eq.Tensor", "aten::expand", "aten::fill.Scalar", "aten::fill.Tensor", "aten::flip", "aten::floor",
    "aten::frac", "aten::full_like", "aten::ge.Scalar", "aten::ge.Tensor", "aten::gt.Scalar", "aten::gt.Tensor",
    "aten::hardshrink", "aten::isinf", "aten::isnan", "aten::isneginf", "aten::isposinf", "aten::le.Scalar", "aten::le.Tensor",
    "aten::leaky_relu", "aten::leaky_relu_backward", "aten::lerp.Scalar", "aten::lerp.Tensor", "aten::logical_and",
    "aten::logical_not", "aten::logical_or", "aten::lt.Scalar", "aten::lt.Tensor", "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor", "aten::max", "aten::maximum", "aten::min", "aten::minimum", "aten::mul.Scalar",
    "aten::mul.Tensor", "aten::native_dropout_backward", "aten::ne.Scalar", "aten::ne.Tensor", "aten::neg", "aten::new_empty",
    "aten::new_empty_strided", "aten::new_full", "aten::new_ones", "aten::new_zeros", "aten::nll_loss_backward",
    "aten::ones_like", "aten::permute", "aten::reciprocal", "aten::relu", "aten::round", "aten::rsqrt", "aten::rsub.Scalar",
    "aten::select.int", "aten::select_backward", "aten::select_scatter", "aten::sgn", "aten::sign", "aten::signbit",
    "aten::sin", "aten::slice.Tensor", "aten::slice_backward", "aten::slice_scatter", "aten::split.Tensor",
    "aten::split_with_sizes", "aten::sqrt", "aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims", "aten::stack",
    "aten::sub.Scalar", "aten::sub.Tensor", "aten::t", "aten::threshold", "aten::threshold_backward", "aten::transpose.int",
    "aten::tril", "aten::triu", "aten::trunc", "aten::unbind.int", "aten::unsafe_split.Tensor", "aten::unsqueeze", "aten::view",
    "aten::where.self", "aten::zero", "aten::zeros_like", "tessera::attention", "tessera::attention_backward",
};

// Operators whose kernel computes an element by one function in its vectors and by another at their end, or whose order of
// additions depends on the rows that are there.
constexpr std::string_view kPerSample[] = {
    "aten::acos", "aten::acosh", "aten::asin", "aten::asinh", "aten::atan", "aten::atan2", "aten::atanh", "aten::celu",
    "aten::cosh", "aten::cumprod", "aten::cumsum", "aten::elu", "aten::elu_backward", "aten::erfc", "aten::erfinv",
    "aten::exp2", "aten::expm1", "aten::glu", "aten::glu_backward", "aten::hardsigmoid", "aten::hardsigmoid_backward",
    "aten::hardswish", "aten::hardswish_backward", "aten::log10", "aten::log1p", "aten::log2", "aten::log_sigmoid_backward",
    "aten::log_sigmoid_forward", "aten::logaddexp", "aten::logcumsumexp", "aten::logsumexp", "aten::mish",
    "aten::mish_backward", "aten::pow.Scalar", "aten::pow.Tensor_Tensor", "aten::prod.dim_int", "aten::sinh", "aten::softplus",
    "aten::softplus_backward", "aten::std.correction", "aten::std_mean.correction", "aten::tan", "aten::var.correction",
    "aten::var_mean.correction", "aten::xlogy.Tensor",
};

// Whole powers that libtorch computes by products alone.
bool is_small_power(const Call& call) {
  const c10::Scalar exponent = call.arg("exponent").toScalar();
  return exponent.equal(1) || exponent.equal(2) || exponent.equal(3);
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
    if (reduced && (sizes[d] != 1 || is_of_samples(call, d))) all.push_back(d);
  }
  return all;
}

// A sum of one dim, or over the tokens of samples, is one tree; others are taken apart.
bool sums_several(const Call& call) {
  const auto dims = long_dims(call);
  const auto& labels = call.spec(0)->labels;
  const bool over_samples = std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return is_of_samples(call, dim); });
  const auto others = std::count_if(dims.begin(), dims.end(), [&](int64_t dim) {
    const bool of_tokens = over_samples && !labels.empty() && (counts_samples(labels[dim]) || counts_positions(labels[dim]));
    return !of_tokens;
  });
  return others + (over_samples ? 1 : 0) > 1;
}

// A sum that is taken apart begins with its innermost dim, which must not hold the samples: they come last.
bool sums_samples_last(const Call& call) {
  const auto dims = long_dims(call);
  return dims.empty() || !sums_several(call) || !is_of_samples(call, dims.back());
}

// A mean over samples would divide by those of the micro-batch, not of the step.
bool is_mean_of_step(const Call& call) {
  for (int64_t dim : long_dims(call)) {
    if (!is_of_samples(call, dim)) continue;
    for (const layout::Factor& factor : call.spec(0)->labels[dim]) {
      if (factor.extent != factor.total) return false;
    }
  }
  return true;
}

bool is_euclidean(const Call& call) {
  const c10::IValue& order = call.arg(call.has_arg("p") ? "p" : "ord");
  return order.isScalar() && order.toScalar().equal(2);
}

// A mask takes as many elements as it has ones, which every rank would have to count.
bool has_no_mask(const Call& call) {
  return std::none_of(call.operands.begin() + 1, call.operands.end(), [](const Operand& index) {
    return index.spec->dtype == c10::ScalarType::Bool || index.spec->dtype == c10::ScalarType::Byte;
  });
}

bool is_unweighted(const Call& call) { return call.operand_of("weight") < 0; }
bool is_unreduced(const Call& call) { return call.integer("reduction") == 0 && is_unweighted(call); }

void add_maps(Table& table) {
  for (std::string_view name : {"aten::exp", "aten::log", "aten::tanh", "aten::erf", "aten::sigmoid", "aten::silu", "aten::gelu"}) {
    table[name] = {.local = exact::run_map};
  }
  for (std::string_view name : {"aten::silu_backward", "aten::gelu_backward"}) table[name] = {.local = exact::run_map_backward};
  table["aten::tanh_backward"] = {.decompose = exact::decompose_tanh_backward};
  table["aten::sigmoid_backward"] = {.decompose = exact::decompose_sigmoid_backward};
}

void add_rows(Table& table) {
  const auto decomposition = [](const char* name) { return RuleTable::instance().find(name)->decompose; };
  table["aten::_softmax"] = {.local = exact::run_softmax};
  table["aten::_safe_softmax"] = {.decompose = exact::decompose_safe_softmax};
  table["aten::_softmax_backward_data"] = {.local = exact::run_softmax_backward};
  table["aten::_log_softmax"] = {.decompose = decomposition("aten::_log_softmax")};
  table["aten::_log_softmax_backward_data"] = {.decompose = decomposition("aten::_log_softmax_backward_data")};
  table["aten::native_layer_norm"] = {.local = exact::run_layer_norm};
  table["aten::native_layer_norm_backward"] = {.decompose = exact::decompose_layer_norm_backward};
}

void add_sums(Table& table) {
  for (std::string_view name : exact::product_names()) table[name] = {.decompose = exact::decompose_product};
  table["tessera::contract"] = {.node = exact::contract_node, .sample = exact::contract_sample};
  for (std::string_view name : {"aten::sum", "aten::sum.dim_IntList"}) {
    table[name] = {.decompose = exact::decompose_sum, .decompose_when = sums_several, .node = exact::sum_node, .sample = exact::sum_sample,
                   .accepts = sums_samples_last};
  }
  for (std::string_view name : {"aten::mean", "aten::mean.dim"}) {
    table[name] = {.decompose = exact::decompose_mean, .accepts = is_mean_of_step};
  }
  for (std::string_view name : {"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim"}) {
    table[name] = {.decompose = exact::decompose_norm, .accepts = is_euclidean};
  }
  table["aten::embedding"] = {.local = exact::run_embedding, .adds_zeros = true};
  table["aten::embedding_dense_backward"] = {.node = exact::embedding_node, .sample = exact::embedding_sample};
  table["aten::index.Tensor"] = {.adds_zeros = true, .accepts = has_no_mask};
  table["aten::mse_loss"] = {.decompose = exact::decompose_mse_loss};
  table["aten::mse_loss_backward"] = {.decompose = exact::decompose_mse_loss_backward};
  table["aten::nll_loss_forward"] = {.adds_zeros = true, .accepts = is_unreduced};
}

Table make_table() {
  Table table;
  for (std::string_view name : kStock) table[name] = {};
  for (std::string_view name : kPerSample) table[name] = {.per_sample = [](const Call&) { return true; }};
  table["aten::pow.Tensor_Scalar"] = {.per_sample = [](const Call& call) { return !is_small_power(call); }};
  add_maps(table);
  add_rows(table);
  add_sums(table);
  return table;
}

ExactRule* find_entry(std::string_view op) {
  static Table& table = *new Table(make_table());
  auto found = table.find(op);
  if (found == table.end()) found = table.find(functional_name(op));
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace

const ExactRule* find_exact_rule(std::string_view op) { return find_entry(op); }

ScopedExactRule::ScopedExactRule(std::string_view op, const ExactRule& rule) : entry_(find_entry(op)) {
  TESSERA_CHECK(entry_, "[exact] no rule of ", op, " to replace");
  before_ = std::exchange(*entry_, rule);
}

ScopedExactRule::~ScopedExactRule() { *entry_ = before_; }

bool counts_samples(const DimLabels& labels) { return has_label(labels, Label::kBatch); }
bool counts_positions(const DimLabels& labels) { return has_label(labels, Label::kSequence) && !has_label(labels, Label::kBatch); }

bool holds_samples(const layout::Labels& labels) { return std::any_of(labels.begin(), labels.end(), counts_samples); }

DimLabels labels_of_factor(const Call& call, const FactorMap& map, int factor) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const layout::Labels& labels = call.spec(i)->labels;
    for (size_t d = 0; d < labels.size(); ++d) {
      const DimFactors& dim = map.operands[i][d];
      if (dim.size() == 1 && dim[0] == factor && layout::is_labelled(labels[d])) return labels[d];
    }
  }
  return {};
}

bool sums_whole_rows(const Call& call) {
  return call.has_arg("equation") && std::none_of(call.operands.begin(), call.operands.end(), [](const Operand& operand) { return operand.is_parameter; });
}

void keep_rows_whole(const Call& call, FactorMap& map) {
  if (!sums_whole_rows(call)) return;
  for (int factor : summed_factors(call, map, 0)) {
    const DimLabels labels = labels_of_factor(call, map, factor);
    if (!counts_samples(labels) && !counts_positions(labels)) map.factors[factor].can_shard = false;
  }
}

std::vector<int> summed_factors(const Call& call, const FactorMap& map, size_t index) {
  std::vector<char> kept(map.factors.size(), 0);
  for (const DimFactors& dim : map.outputs.at(index)) {
    for (int factor : dim) kept[factor] = 1;
  }
  std::vector<int> summed;
  for (const TensorFactors& tensor : map.operands) {
    for (const DimFactors& dim : tensor) {
      for (int factor : dim) {
        if (!std::exchange(kept[factor], 1)) summed.push_back(factor);
      }
    }
  }
  std::vector<int> counting;
  std::copy_if(summed.begin(), summed.end(), std::back_inserter(counting), [&](int factor) {
    return map.factors[factor].extent != 1 || counts_samples(labels_of_factor(call, map, factor));
  });
  return counting.empty() ? summed : counting;
}

}  // namespace tessera::rules
