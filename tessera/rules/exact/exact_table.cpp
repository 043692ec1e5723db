#include "tessera/rules/exact/exact_table.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

using Table = std::unordered_map<std::string_view, ExactRule>;

// Operators that move values, make them or compare them, of any dtype.
// clang-format off
constexpr std::string_view kMoves[] = {
    "aten::_reshape_alias", "aten::_to_copy", "aten::_unsafe_view", "aten::alias", "aten::cat", "aten::clone",
    "aten::constant_pad_nd", "aten::copy", "aten::copy_", "aten::diagonal", "aten::empty_like", "aten::eq.Scalar",
    "aten::eq.Tensor", "aten::expand", "aten::fill.Scalar", "aten::fill.Tensor", "aten::flip", "aten::full_like",
    "aten::masked_fill.Scalar", "aten::masked_fill.Tensor", "aten::ne.Scalar", "aten::ne.Tensor", "aten::new_empty",
    "aten::new_empty_strided", "aten::new_full", "aten::new_ones", "aten::new_zeros", "aten::ones_like", "aten::permute",
    "aten::repeat", "aten::select.int", "aten::select_backward", "aten::select_scatter", "aten::slice.Tensor",
    "aten::slice_backward", "aten::slice_scatter", "aten::split.Tensor", "aten::split_with_sizes", "aten::squeeze",
    "aten::squeeze.dim", "aten::squeeze.dims", "aten::stack", "aten::t", "aten::transpose.int", "aten::tril", "aten::triu",
    "aten::unbind.int", "aten::unsafe_split.Tensor", "aten::unsqueeze", "aten::view", "aten::where.self", "aten::zero",
    "aten::zeros_like",
};
// clang-format on

// Operators that combine elements by IEEE operations: the ordinary kernel is exact.
// clang-format off
constexpr std::string_view kStock[] = {
    "aten::abs", "aten::addcdiv", "aten::addcmul", "aten::all", "aten::amax", "aten::amin", "aten::any", "aten::argmax",
    "aten::argmin", "aten::bitwise_and.Tensor", "aten::bitwise_not", "aten::bitwise_or.Tensor", "aten::ceil", "aten::clamp",
    "aten::clamp.Tensor", "aten::clamp_max", "aten::clamp_min", "aten::cos", "aten::div.Scalar", "aten::div.Tensor",
    "aten::floor", "aten::frac", "aten::ge.Scalar", "aten::ge.Tensor", "aten::gt.Scalar", "aten::gt.Tensor",
    "aten::hardshrink", "aten::isinf", "aten::isnan", "aten::isneginf", "aten::isposinf", "aten::le.Scalar",
    "aten::le.Tensor", "aten::leaky_relu", "aten::leaky_relu_backward", "aten::lerp.Scalar", "aten::lerp.Tensor",
    "aten::logical_and", "aten::logical_not", "aten::logical_or", "aten::lt.Scalar", "aten::lt.Tensor", "aten::max",
    "aten::maximum", "aten::min", "aten::minimum", "aten::mul.Scalar", "aten::mul.Tensor", "aten::native_dropout_backward",
    "aten::neg", "aten::nll_loss_backward", "aten::reciprocal", "aten::relu", "aten::round",
    "aten::rrelu_with_noise_backward", "aten::rsqrt", "aten::sgn", "aten::sign", "aten::signbit", "aten::sin", "aten::sqrt",
    "aten::threshold", "aten::threshold_backward", "aten::trunc", "tessera::attention", "tessera::attention_backward",
};
// clang-format on

// Operators whose kernel computes an element by one function in its vectors and by another at their end, or whose order
// of additions may depend on the rows, channels and memory that are there.
// clang-format off
constexpr std::string_view kPerSample[] = {
    "aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool3d_backward", "aten::acos", "aten::acosh", "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d", "aten::adaptive_max_pool3d_backward", "aten::asin",
    "aten::asinh", "aten::atan", "aten::atan2", "aten::atanh", "aten::avg_pool2d", "aten::avg_pool2d_backward",
    "aten::avg_pool3d", "aten::avg_pool3d_backward", "aten::celu", "aten::cosh", "aten::cumprod", "aten::cumsum",
    "aten::elu", "aten::elu_backward", "aten::erfc", "aten::erfinv", "aten::exp2", "aten::expm1", "aten::glu",
    "aten::glu_backward", "aten::hardsigmoid", "aten::hardsigmoid_backward", "aten::hardswish", "aten::hardswish_backward",
    "aten::log10", "aten::log1p", "aten::log2", "aten::log_sigmoid_backward", "aten::log_sigmoid_forward",
    "aten::logaddexp", "aten::logcumsumexp", "aten::logsumexp", "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward", "aten::mish", "aten::mish_backward", "aten::pow.Scalar",
    "aten::pow.Tensor_Tensor", "aten::prod.dim_int", "aten::reflection_pad1d", "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d", "aten::reflection_pad2d_backward", "aten::reflection_pad3d",
    "aten::reflection_pad3d_backward", "aten::replication_pad1d", "aten::replication_pad1d_backward",
    "aten::replication_pad2d", "aten::replication_pad2d_backward", "aten::replication_pad3d",
    "aten::replication_pad3d_backward", "aten::sinh", "aten::softplus", "aten::softplus_backward", "aten::std.correction",
    "aten::std_mean.correction", "aten::tan", "aten::var.correction", "aten::var_mean.correction", "aten::xlogy.Tensor",
};
// clang-format on

// Whole powers that libtorch computes by products alone.
bool is_small_power(const Call& call) {
  const c10::Scalar exponent = call.arg("exponent").toScalar();
  return exponent.equal(1) || exponent.equal(2) || exponent.equal(3);
}

// a + alpha * b is one rounding in some of libtorch's loops and two in others: where an operand is spread over elements
// of the other. (The value of an int is part of a plan's key, that of a double is not.)
bool scales_what_is_spread(const Call& call) {
  const c10::IValue& alpha = call.arg("alpha");
  if (alpha.isInt() && (alpha.toInt() == 1 || alpha.toInt() == -1)) {
    return false;
  }
  const auto is_spread = [&](const Operand& operand) {
    const layout::SpecData& spec = *operand.spec;
    const auto has_other_sizes = spec.sizes != call.spec(0)->sizes;
    return has_other_sizes || std::find(spec.strides.begin(), spec.strides.end(), 0) != spec.strides.end();
  };
  return call.operands.size() == 1 || std::any_of(call.operands.begin(), call.operands.end(), is_spread);
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

// Statistics of some of the step's samples would depend on the micro-batches.
bool normalises_whole_step(const Call& call) {
  if (!call.flag(call.has_arg("train") ? "train" : "training")) {
    return true;
  }
  const auto& labels = call.spec(static_cast<size_t>(call.operand_of("input")))->labels;
  return labels.empty() || std::all_of(labels[0].begin(), labels[0].end(),
                                       [](const layout::Factor& factor) { return factor.extent == factor.total; });
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

// The gradient of `table[ids]`, which libtorch writes into zeros of its own. (Programs' writes are safe ones.)
bool is_gradient_of_lookup(const Call& call) {
  const auto indices = call.arg("indices").toListRef();
  const bool is_of_rows =
      !indices.empty() && indices[0].isTensor() && indices[0].toTensor().defined() && call.operands.size() == 3;
  return call.flag("unsafe") && call.flag("accumulate") && call.dim_of(0) == 2 && is_of_rows && has_no_mask(call);
}

bool is_unweighted(const Call& call) { return call.operand_of("weight") < 0; }
bool is_unreduced(const Call& call) { return call.integer("reduction") == 0 && is_unweighted(call); }

void add_maps(Table& table) {
  for (std::string_view name :
       {"aten::add.Scalar", "aten::add.Tensor", "aten::rsub.Scalar", "aten::sub.Scalar", "aten::sub.Tensor"}) {
    table[name] = {.decompose = exact::decompose_scaled_sum, .decompose_when = scales_what_is_spread};
  }
  for (std::string_view name :
       {"aten::exp", "aten::log", "aten::tanh", "aten::erf", "aten::sigmoid", "aten::silu", "aten::gelu"}) {
    table[name] = {.local = exact::run_map};
  }
  for (std::string_view name : {"aten::silu_backward", "aten::gelu_backward"}) {
    table[name] = {.local = exact::run_map_backward};
  }
  table["aten::tanh_backward"] = {.decompose = exact::decompose_tanh_backward};
  table["aten::sigmoid_backward"] = {.decompose = exact::decompose_sigmoid_backward};
}

void add_convolutions(Table& table) {
  table["aten::convolution"] = {.local = exact::run_convolution, .keeps_whole = true};
  table["aten::convolution_backward"] = {.decompose = exact::decompose_convolution_backward};
  table["tessera::convolution_weight"] = {
      .local = exact::run_convolution_weight, .sample = exact::convolution_weight_sample, .keeps_whole = true};
}

void add_rows(Table& table) {
  const auto decomposition = [](const char* name) { return RuleTable::instance().find(name)->decompose; };
  table["aten::_softmax"] = {.local = exact::run_softmax};
  table["aten::_safe_softmax"] = {.decompose = exact::decompose_safe_softmax};
  table["aten::_softmax_backward_data"] = {.local = exact::run_softmax_backward};
  table["aten::_log_softmax"] = {.decompose = decomposition("aten::_log_softmax")};
  table["aten::_log_softmax_backward_data"] = {.decompose = decomposition("aten::_log_softmax_backward_data")};
  for (const char* name : {"aten::native_batch_norm", "aten::native_batch_norm_backward"}) {
    table[name] = {.decompose = decomposition(name), .accepts = normalises_whole_step};
  }
  table["aten::native_layer_norm"] = {.local = exact::run_layer_norm};
  table["aten::native_layer_norm_backward"] = {.decompose = exact::decompose_layer_norm_backward};
}

void add_sums(Table& table) {
  for (std::string_view name : exact::product_names()) {
    table[name] = {.decompose = exact::decompose_product};
  }
  table["tessera::contract"] = {.node = exact::contract_node, .sample = exact::contract_sample};
  for (std::string_view name : {"aten::sum", "aten::sum.dim_IntList"}) {
    table[name] = {.decompose = exact::decompose_sum,
                   .decompose_when = sums_several,
                   .node = exact::sum_node,
                   .sample = exact::sum_sample};
  }
  for (std::string_view name : {"aten::mean", "aten::mean.dim"}) {
    table[name] = {.decompose = exact::decompose_mean, .accepts = is_mean_of_step};
  }
  for (std::string_view name : {"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim"}) {
    table[name] = {.decompose = exact::decompose_norm, .accepts = is_euclidean};
  }
  table["aten::embedding"] = {.local = exact::run_embedding, .adds_zeros = true};
  table["aten::embedding_dense_backward"] = {.node = exact::embedding_node, .sample = exact::embedding_sample};
  table["aten::_index_put_impl_"] = {.decompose = exact::decompose_index_backward, .accepts = is_gradient_of_lookup};
  table["aten::index.Tensor"] = {.adds_zeros = true, .accepts = has_no_mask};
  table["aten::mse_loss"] = {.decompose = exact::decompose_mse_loss};
  table["aten::mse_loss_backward"] = {.decompose = exact::decompose_mse_loss_backward};
  table["aten::nll_loss_forward"] = {.adds_zeros = true, .accepts = is_unreduced};
}

Table make_table() {
  Table table;
  for (std::string_view name : kMoves) {
    table[name] = {.moves = true};
  }
  for (std::string_view name : kStock) {
    table[name] = {};
  }
  for (std::string_view name : kPerSample) {
    table[name] = {.per_sample = [](const Call&) { return true; }};
  }
  table["aten::pow.Tensor_Scalar"] = {.per_sample = [](const Call& call) { return !is_small_power(call); }};
  add_convolutions(table);
  add_maps(table);
  add_rows(table);
  add_sums(table);
  return table;
}

ExactRule* find_entry(std::string_view op) {
  static Table& table = *new Table(make_table());
  auto found = table.find(op);
  if (found == table.end()) {
    found = table.find(functional_name(op));
  }
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace

const ExactRule* find_exact_rule(std::string_view op) { return find_entry(op); }

ScopedExactRule::ScopedExactRule(std::string_view op, const ExactRule& rule) : entry_(find_entry(op)) {
  TESSERA_CHECK(entry_, "[exact] no rule of ", op, " to replace");
  before_ = std::exchange(*entry_, rule);
}

ScopedExactRule::~ScopedExactRule() { *entry_ = before_; }

}  // namespace tessera::rules
