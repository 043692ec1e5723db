// Operators that compute each element of the result from the elements at its place.
#include "tessera/rules/families/families.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/norm.h>

#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

using Names = std::vector<std::string>;

Rule elementwise(PartialFlow flow = PartialFlow::kMerge) {
  return {.map = [flow](const Call& call) {
    FactorMap map = broadcast_factors(call);
    map.partial = flow;
    return map;
  }};
}

// For operators without a meta kernel: `dtype(call)` is that of the results.
template <typename Dtype>
Rule without_meta(Dtype dtype, PartialFlow flow = PartialFlow::kMerge) {
  return {.map =
              [flow, dtype](const Call& call) {
                FactorMap map = broadcast_factors(call);
                map.partial = flow;
                map.dtypes.assign(map.outputs.size(), dtype(call));
                return map;
              },
          .shape = ShapeSource::kFactors};
}

c10::ScalarType first_dtype(const Call& call) { return call.spec(0)->dtype; }
c10::ScalarType bool_dtype(const Call& call) { return call.operands[0].is_written ? first_dtype(call) : c10::kBool; }
c10::ScalarType float_dtype(const Call& call) { return fractional_dtype(first_dtype(call)); }
c10::ScalarType real_dtype(const Call& call) {
  return call.operands[0].is_written ? first_dtype(call) : c10::toRealValueType(first_dtype(call));
}
c10::ScalarType angle_dtype(const Call& call) { return c10::toRealValueType(float_dtype(call)); }
c10::ScalarType any_dtype(const Call& call) { return promoted_dtype(call); }
c10::ScalarType branch_dtype(const Call& call) { return promoted_dtype(call, 1); }

// Linear in operand 0 when the others are single numbers, in whatever form.
FactorMap scaling_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  const bool by_numbers = std::all_of(call.operands.begin() + 1, call.operands.end(),
                                      [](const Operand& operand) { return operand.spec->ndim() == 0; });
  map.partial = by_numbers ? PartialFlow::kLinear : PartialFlow::kMerge;
  return map;
}

bool is_widening(c10::ScalarType from, c10::ScalarType to) {
  return c10::isFloatingType(from) && c10::isFloatingType(to) && c10::promoteTypes(from, to) == to;
}

// A cast that loses nothing commutes with every merge.
FactorMap cast_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  const auto from = call.spec(0)->dtype;
  const auto to = call.outputs.empty() ? from : call.outputs[0].dtype;
  map.partial = from == to || is_widening(from, to) ? PartialFlow::kAny : PartialFlow::kMerge;
  return map;
}

// self = src: casts as above, and the parts of src replace those of a self that is split alike.
FactorMap copy_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  const auto from = call.spec(1)->dtype;
  const auto to = call.spec(0)->dtype;
  map.partial = from == to || is_widening(from, to) ? PartialFlow::kJoint : PartialFlow::kMerge;
  return map;
}

// Zero is the zero of every part.
FactorMap fill_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  const c10::IValue& value = call.arg("value");
  map.partial = value.isScalar() && value.toScalar().equal(0) ? PartialFlow::kAny : PartialFlow::kMerge;
  return map;
}

// Another reading of the same bits: elementwise where the element sizes agree, else the last dim stays whole.
FactorMap view_dtype_map(const Call& call) {
  FactorMap map;
  map.operands = {map.add_all(call.spec(0)->sizes)};
  map.outputs = map.operands;
  const auto& from = call.spec(0)->sizes;
  if (!from.empty() && from.back() != call.outputs.at(0).sizes.back()) {
    map.block(map.operands[0].back());
    map.outputs[0].back() = {map.add(call.outputs[0].sizes.back(), false)};
  }
  return map;
}

// Halves of one dim meet.
FactorMap glu_map(const Call& call) {
  FactorMap map;
  const size_t last = call.operands.size() - 1;
  const int64_t dim = wrap_dim(call.integer("dim"), call.dim_of(last));
  TensorFactors whole = map.add_all(call.spec(last)->sizes);
  map.block(whole[dim]);
  TensorFactors half = whole;
  half[dim] = {map.add(call.spec(last)->sizes[dim] / 2, false)};
  if (last == 0) {
    map.operands = {whole};
    map.outputs = {half};
  } else {
    map.operands = {half, whole};
    map.outputs = {whole};
  }
  return map;
}

// Copied at once: what copies itself later may not be handed to every kernel.
void run_clone(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args.give(args.tensor("self").clone());
}

// x = m * 2^e
FactorMap frexp_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  map.dtypes = {first_dtype(call), c10::kInt};
  return map;
}

// The norm of a difference.
void decompose_dist(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  args.give(at::norm(args.tensor("self") - args.tensor("other"), args["p"].toScalar()));
}

// The kernel of some devices keeps an empty buffer.
FactorMap log_sigmoid_backward_map(const Call& call) {
  FactorMap map;
  const TensorFactors tensor = map.add_all(call.spec(0)->sizes);
  map.operands.assign(call.operands.size(), tensor);
  if (call.spec(2)->sizes != call.spec(0)->sizes) {
    map.operands[2] = map.add_all(call.spec(2)->sizes);
  }
  map.outputs = {tensor};
  return map;
}

// By IEEE operations.
const Names& in_ieee() {
  // clang-format off
  static const Names names = {
      "aten::addcdiv", "aten::addcmul", "aten::bitwise_and.Tensor", "aten::bitwise_not", "aten::bitwise_or.Tensor",
      "aten::ceil", "aten::clamp", "aten::clamp.Tensor", "aten::clamp_max", "aten::clamp_min", "aten::cos",
      "aten::floor", "aten::frac", "aten::ge.Scalar", "aten::ge.Tensor", "aten::gt.Scalar", "aten::gt.Tensor",
      "aten::hardshrink", "aten::isneginf", "aten::isposinf", "aten::le.Scalar", "aten::le.Tensor", "aten::leaky_relu",
      "aten::leaky_relu_backward", "aten::lerp.Tensor", "aten::lt.Scalar", "aten::lt.Tensor", "aten::maximum",
      "aten::minimum", "aten::reciprocal", "aten::round", "aten::rsqrt", "aten::sgn", "aten::sign", "aten::signbit",
      "aten::sin", "aten::sqrt", "aten::threshold", "aten::threshold_backward", "aten::trunc"};
  // clang-format on
  return names;
}

// By functions whose kernels differ in vectors and behind them.
const Names& by_vectors() {
  // clang-format off
  static const Names names = {
      "aten::acos", "aten::acosh", "aten::asin", "aten::asinh", "aten::atan", "aten::atan2", "aten::atanh",
      "aten::celu", "aten::cosh", "aten::elu", "aten::elu_backward", "aten::erfc", "aten::erfinv", "aten::exp2",
      "aten::expm1", "aten::hardsigmoid", "aten::hardsigmoid_backward", "aten::log10", "aten::log1p", "aten::log2",
      "aten::logaddexp", "aten::mish", "aten::mish_backward", "aten::pow.Scalar", "aten::pow.Tensor_Tensor",
      "aten::sinh", "aten::softplus", "aten::softplus_backward", "aten::tan", "aten::xlogy.Tensor"};
  // clang-format on
  return names;
}

// Without an exact form: of one tensor, of a tensor and a number, of several tensors.
const Names& unary() {
  // clang-format off
  static const Names names = {
      "aten::deg2rad", "aten::digamma", "aten::i0", "aten::lgamma", "aten::polygamma", "aten::rad2deg",
      "aten::round.decimals", "aten::sinc", "aten::softshrink", "aten::special_airy_ai", "aten::special_bessel_j0",
      "aten::special_bessel_j1", "aten::special_bessel_y0", "aten::special_bessel_y1", "aten::special_entr",
      "aten::special_erfcx", "aten::special_i0e", "aten::special_i1", "aten::special_i1e", "aten::special_log_ndtr",
      "aten::special_modified_bessel_i0", "aten::special_modified_bessel_i1", "aten::special_modified_bessel_k0",
      "aten::special_modified_bessel_k1", "aten::special_ndtri", "aten::special_scaled_modified_bessel_k0",
      "aten::special_scaled_modified_bessel_k1", "aten::special_spherical_bessel_j0"};
  // clang-format on
  return names;
}

const Names& with_scalar() {
  // clang-format off
  static const Names names = {
      "aten::bitwise_and.Scalar", "aten::bitwise_and.Scalar_Tensor", "aten::bitwise_left_shift.Scalar_Tensor",
      "aten::bitwise_left_shift.Tensor_Scalar", "aten::bitwise_or.Scalar", "aten::bitwise_or.Scalar_Tensor",
      "aten::bitwise_right_shift.Scalar_Tensor", "aten::bitwise_right_shift.Tensor_Scalar", "aten::bitwise_xor.Scalar",
      "aten::bitwise_xor.Scalar_Tensor", "aten::copysign.Scalar", "aten::div.Scalar_mode", "aten::fmod.Scalar",
      "aten::remainder.Scalar", "aten::xlogy.Scalar_Other", "aten::xlogy.Scalar_Self"};
  // clang-format on
  return names;
}

const Names& several() {
  // clang-format off
  static const Names names = {
      "aten::bitwise_left_shift.Tensor", "aten::bitwise_right_shift.Tensor", "aten::bitwise_xor.Tensor",
      "aten::clamp_max.Tensor", "aten::clamp_min.Tensor", "aten::copysign.Tensor", "aten::div.Tensor_mode",
      "aten::fmax", "aten::fmin", "aten::fmod.Tensor", "aten::gcd", "aten::hardshrink_backward", "aten::heaviside",
      "aten::hypot", "aten::igamma", "aten::igammac", "aten::lcm", "aten::ldexp.Tensor", "aten::ldexp_",
      "aten::logaddexp2", "aten::logit_backward", "aten::nextafter", "aten::pow_.Tensor", "aten::remainder.Tensor",
      "aten::softshrink_backward"};
  // clang-format on
  return names;
}

// Of two tensors, or of a tensor and a number on either side.
const Names& special_pairs() {
  static const Names names = [] {
    Names all;
    const auto add = [&](const std::string& name, const char* left, const char* right) {
      for (const std::string& overload : {std::string(), std::string(".") + left, std::string(".") + right}) {
        all.push_back("aten::special_" + name + overload);
      }
    };
    for (const char* name : {"xlog1py", "zeta"}) {
      add(name, "self_scalar", "other_scalar");
    }
    for (const char* kind :
         {"chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
          "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"}) {
      add(kind, "x_scalar", "n_scalar");
    }
    for (const char* kind : {"t", "u", "v", "w"}) {
      add(std::string("shifted_chebyshev_polynomial_") + kind, "x_scalar", "n_scalar");
    }
    return all;
  }();
  return names;
}

// Whole powers that libtorch computes by products alone.
bool is_small_power(const Call& call) {
  const c10::Scalar exponent = call.arg("exponent").toScalar();
  return exponent.equal(1) || exponent.equal(2) || exponent.equal(3);
}

// a + b or a - b. (The value of an int is part of a plan's key, that of a double is not.)
bool is_unscaled(const Call& call) {
  const c10::IValue& alpha = call.arg("alpha");
  return alpha.isInt() && (alpha.toInt() == 1 || alpha.toInt() == -1);
}

// Of no numbers: libtorch rounds them to 16 bits before it adds or compares.
bool reads_tensors(const Call& call) {
  return call.operands.size() == 2 &&
         std::all_of(call.operands.begin(), call.operands.end(),
                     [](const Operand& operand) { return !operand.is_number && operand.spec->ndim() > 0; });
}

bool adds_tensors(const Call& call) { return is_unscaled(call) && reads_tensors(call); }

// a + alpha * b is one rounding in some of libtorch's loops and two in others: where an operand is spread over elements
// of the other.
bool scales_what_is_spread(const Call& call) {
  if (is_unscaled(call)) {
    return false;
  }
  const auto is_spread = [&](const Operand& operand) {
    const layout::SpecData& spec = *operand.spec;
    const auto has_other_sizes = spec.sizes != call.spec(0)->sizes;
    return has_other_sizes || std::find(spec.strides.begin(), spec.strides.end(), 0) != spec.strides.end();
  };
  return call.operands.size() == 1 || std::any_of(call.operands.begin(), call.operands.end(), is_spread);
}

// Scaled by a number, of a tensor whose sums may wait.
Rule scaling(Rule rule, Carry carry) {
  rule.exact = exact::kAsIsNarrow;
  rule.carry = carry;
  return rule;
}

void add_copies(RuleTable& table) {
  const Rule moving = elementwise(PartialFlow::kAny);
  table.add_all({"aten::alias_copy", "aten::detach_", "aten::detach_copy", "aten::lift_fresh", "aten::lift_fresh_copy"},
                moving);
  Rule alias = moving;
  alias.special = Special::kAlias;
  alias.needs_no_value = true;
  alias.copies = true;
  table.add("aten::alias", alias.in_exact(exact::kMoves));
  table.add("aten::detach", alias);
  Rule clone = moving.in_exact(exact::kMoves);
  clone.carry = Carry::kInFirst;
  clone.copies = true;
  table.add("aten::clone", clone);
  Rule lazy = moving;
  lazy.local = run_clone;
  lazy.takes_interleaved = true;
  table.add("aten::_lazy_clone", lazy);
  table.add("aten::_to_copy", {.map = cast_map, .exact = exact::kMoves, .carry = Carry::kInFirst, .copies = true});
  table.add("aten::copy", {.map = copy_map, .exact = exact::kMoves});
  table.add("aten::copy_", {.map = copy_map, .exact = exact::kMoves, .carry = Carry::kCopy});
}

void add_fills(RuleTable& table) {
  table.add("aten::zero", elementwise(PartialFlow::kAny).in_exact(exact::kMoves));
  table.add("aten::zero_", {.overwrites = true});
  table.add("aten::fill.Scalar", {.map = fill_map, .reads_numbers = true, .exact = exact::kMoves});
  table.add("aten::masked_fill.Scalar",
            {.map = fill_map, .reads_numbers = true, .exact = exact::kMoves, .carry = Carry::kMaskedFill});
  table.add("aten::fill_.Scalar", {.overwrites = true});
  table.add_all({"aten::fill.Tensor", "aten::masked_fill.Tensor"}, elementwise().in_exact(exact::kMoves));
  Rule where = without_meta(branch_dtype).in_exact(exact::kMoves);
  where.carry = Carry::kWhere;
  table.add("aten::where.self", where);
}

void add_sums(RuleTable& table) {
  const auto scaled = [](Decomposition decompose) {
    return ExactRule{.decompose = decompose, .decompose_when = scales_what_is_spread, .takes_narrow = adds_tensors};
  };
  table.add("aten::add.Scalar", elementwise().in_exact(scaled(exact::decompose_scaled_add)));
  table.add("aten::rsub.Scalar", elementwise().in_exact(scaled(exact::decompose_scaled_rsub)));
  table.add("aten::sub.Scalar", elementwise().in_exact(scaled(exact::decompose_scaled_sub)));
  Rule add = elementwise(PartialFlow::kJoint).in_exact(scaled(exact::decompose_scaled_add));
  add.carry = Carry::kAdd;
  table.add("aten::add.Tensor", add);
  table.add("aten::add_.Tensor", {.carry = Carry::kAdd});
  table.add("aten::sub.Tensor", elementwise(PartialFlow::kJoint).in_exact(scaled(exact::decompose_scaled_sub)));
  table.add("aten::lerp.Scalar", elementwise(PartialFlow::kJoint).in_exact(exact::kAsIs));
  table.add_all({"aten::neg", "aten::mul.Scalar", "aten::div.Scalar"},
                scaling(elementwise(PartialFlow::kLinear), Carry::kInFirst));
  table.add("aten::mul.Tensor", scaling({.map = scaling_map}, Carry::kInEither));
  table.add("aten::div.Tensor", scaling({.map = scaling_map}, Carry::kInFirst));
}

// Functions that `exact` computes by kernels of its own.
void add_functions(RuleTable& table) {
  using kernels::Function;
  const auto function = [&](const char* op, LocalKernel exact) {
    table.add(op, elementwise().in_exact({.local = exact}));
  };
  function("aten::erf", exact::run_map<Function::kErf>);
  function("aten::exp", exact::run_map<Function::kExp>);
  function("aten::gelu", exact::run_gelu);
  function("aten::gelu_backward", exact::run_gelu_backward);
  function("aten::log", exact::run_map<Function::kLog>);
  function("aten::sigmoid", exact::run_map<Function::kSigmoid>);
  function("aten::silu", exact::run_map<Function::kSilu>);
  function("aten::silu_backward", exact::run_silu_backward);
  function("aten::tanh", exact::run_map<Function::kTanh>);
  const auto derivative = [&](const char* op, Decomposition decompose) {
    Rule rule = elementwise().in_exact({.decompose = decompose});
    rule.carry = Carry::kInFirst;
    table.add(op, rule);
  };
  derivative("aten::sigmoid_backward", exact::decompose_sigmoid_backward);
  derivative("aten::tanh_backward", exact::decompose_tanh_backward);
  Rule power = elementwise().in_exact({.per_sample = [](const Call& call) { return !is_small_power(call); }});
  power.reads_numbers = true;
  table.add("aten::pow.Tensor_Scalar", power);
}

// Those that libtorch cannot run on meta tensors.
void add_without_meta(RuleTable& table) {
  const Rule same = without_meta(first_dtype);
  table.add_all({"aten::_standard_gamma_grad", "aten::_prelu_kernel", "aten::_prelu_kernel_backward", "aten::hardtanh",
                 "aten::hardtanh_backward", "aten::nan_to_num"},
                same);
  table.add_all({"aten::hardswish", "aten::hardswish_backward", "aten::log_sigmoid_forward"},
                same.in_exact(exact::kPerSample));
  table.add("aten::relu", same.in_exact(exact::kAsIsNarrow));
  table.add("aten::rrelu_with_noise_backward", same.in_exact(exact::kAsIs));
  table.add("aten::_amp_update_scale_", same);
  table.add("aten::native_dropout_backward", without_meta(first_dtype, PartialFlow::kLinear).in_exact(exact::kAsIs));
  table.add("aten::log_sigmoid_backward",
            {.map = log_sigmoid_backward_map, .shape = ShapeSource::kFactors, .exact = exact::kPerSample});
  table.add("aten::logical_xor", without_meta(bool_dtype));
  table.add_all({"aten::isinf", "aten::isnan", "aten::logical_and", "aten::logical_not", "aten::logical_or"},
                without_meta(bool_dtype).in_exact(exact::kAsIsNarrow));
  table.add("aten::abs", without_meta(real_dtype).in_exact(exact::kAsIsNarrow));
  table.add("aten::angle", without_meta(angle_dtype));
  table.add_all({"aten::logit", "aten::mvlgamma"}, without_meta(float_dtype));
  table.add("aten::frexp.Tensor", {.map = frexp_map, .shape = ShapeSource::kFactors});
  table.add_all({"aten::floor_divide", "aten::floor_divide.Scalar", "aten::floor_divide_.Tensor",
                 "aten::remainder.Scalar_Tensor", "aten::rsub.Tensor"},
                without_meta(any_dtype));
}

}  // namespace

void add_elementwise_rules(RuleTable& table) {
  add_copies(table);
  add_fills(table);
  add_sums(table);
  add_functions(table);
  table.add_all(in_ieee(), elementwise().in_exact(exact::kAsIs));
  table.add_all(by_vectors(), elementwise().in_exact(exact::kPerSample));
  table.add_all({"aten::eq.Scalar", "aten::eq.Tensor", "aten::ne.Scalar", "aten::ne.Tensor"},
                elementwise().in_exact({.moves = true, .takes_narrow = reads_tensors}));
  table.add_all(unary(), elementwise());
  table.add_all(with_scalar(), elementwise());
  table.add_all(several(), elementwise());
  table.add_all(special_pairs(), elementwise());
  add_without_meta(table);
  table.add("aten::dist", {.map = nullptr, .decompose = decompose_dist});
  table.add_all({"aten::view.dtype", "aten::view_copy.dtype"}, {.map = view_dtype_map});
  table.add("aten::glu", {.map = glu_map, .exact = exact::kPerSample});
  table.add("aten::glu_backward", {.map = glu_map, .shape = ShapeSource::kFactors, .exact = exact::kPerSample});
}

}  // namespace tessera::rules
