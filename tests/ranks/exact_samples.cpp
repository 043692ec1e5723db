#include "tests/ranks/exact_samples.h"

namespace tessera::ranks {

namespace {

using rules::testing::Named;

// Sizes that fill their leaves unevenly: 13 in seven leaves, 20 in seven, 16 in eight, 300 in leaves longer than a
// piece.
void add_own_samples(Samples& samples) {
  using audit::reals;
  using audit::sample;
  const auto product = [&](const char* equation, const at::Tensor& a, const at::Tensor& b) {
    samples.push_back(
        sample("tessera::contract", {a, b}, {{"equation", std::string(equation)}, {"like", c10::IValue()}}));
  };
  for (int64_t exponent : {1, 2, 3}) {
    samples.push_back(sample("aten::pow.Tensor_Scalar", {reals({13, 4})}, {{"exponent", exponent}}));
  }
  for (int64_t k : {5, 13, 16, 20, 2300}) {
    product("ik,kj->ij", reals({13, k}), reals({k, 9}));
    product("ik,jk->ij", reals({4, k}), reals({13, k}));
    product("ki,kj->ij", reals({k, 4}), reals({k, 13}));
    product("bsk,jk->bsj", reals({2, 3, k}), reals({5, k}));
    product("bhik,bhjk->bhij", reals({2, 3, 4, k}), reals({2, 3, 5, k}));
    product("bhij,bhjk->bihk", reals({2, 3, 4, k}), reals({2, 3, k, 5}));
    product("i,j->ij", reals({k}), reals({3}));
    for (int64_t dim : {0, 1}) {
      samples.push_back(sample("aten::sum.dim_IntList",
                               {reals(dim == 0 ? std::vector<int64_t>{k, 4} : std::vector<int64_t>{4, k})},
                               {{"dim", std::vector<int64_t>{dim}}}));
      samples.push_back(sample("aten::_softmax", {reals({13, k})}, {{"dim", dim}, {"half_to_float", false}}));
      samples.push_back(sample("aten::_log_softmax", {reals({13, k})}, {{"dim", dim}, {"half_to_float", false}}));
    }
    samples.push_back(sample("aten::sum", {reals({3, k, 7})}));
    samples.push_back(sample("aten::mean", {reals({3, k, 7})}));
    samples.push_back(sample("aten::linalg_vector_norm", {reals({13, k})}));
    samples.push_back(sample("aten::native_layer_norm", {reals({4, k}), reals({k}), reals({k})},
                             {{"normalized_shape", std::vector<int64_t>{k}}, {"eps", 1e-5}}));
    for (const char* op :
         {"aten::exp", "aten::tanh", "aten::erf", "aten::sigmoid", "aten::silu", "aten::gelu", "aten::log"}) {
      samples.push_back(sample(op, {reals({3, k})}));
    }
  }
}

// What libtorch's loops round once or twice, by how an operand is spread.
void add_scaled_samples(Samples& samples) {
  using audit::reals;
  using audit::sample;
  for (const char* op : {"aten::add.Tensor", "aten::sub.Tensor"}) {
    for (const c10::IValue& alpha : {c10::IValue(0.3), c10::IValue(1), c10::IValue(-1), c10::IValue(3)}) {
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{6, 4, 6}, {1, 4, 1}, {6, 1, 1}, {6}, {}}) {
        samples.push_back(sample(op, {reals({6, 4, 6}), reals(sizes)}, {{"alpha", alpha}}));
        samples.push_back(sample(op, {reals(sizes), reals({6, 4, 6})}, {{"alpha", alpha}}));
      }
    }
  }
  for (const char* op : {"aten::add.Scalar", "aten::sub.Scalar", "aten::rsub.Scalar"}) {
    samples.push_back(sample(op, {reals({13, 20})}, {{"other", 1.7}, {"alpha", 0.3}}));
  }
}

// Sums longer than a chain, windows of one place, channels and groups that ranks hold unevenly.
void add_convolution_samples(Samples& samples) {
  using audit::reals;
  using Ints = std::vector<int64_t>;
  const auto add = [&](const Ints& input, const Ints& weight, int64_t groups, bool transposed) {
    const Ints ones(input.size() - 2, 1), none(input.size() - 2, 0);
    const Named rest = {{"stride", ones},           {"padding", none},        {"dilation", ones},
                        {"transposed", transposed}, {"output_padding", none}, {"groups", groups}};
    const at::Tensor bias = reals({transposed ? weight[1] * groups : weight[0]});
    samples.push_back(audit::sample("aten::convolution", {reals(input), reals(weight), bias}, rest));
  };
  add({2, 40, 9}, {13, 40, 8}, 1, false);
  add({3, 300, 2, 2}, {4, 300, 1, 1}, 1, false);
  add({2, 5, 4, 3, 4}, {8, 5, 2, 3, 2}, 1, false);
  add({2, 15, 7}, {10, 3, 4}, 5, false);
  add({2, 300, 3}, {300, 5, 2}, 1, true);
}

void add_attention_samples(Samples& samples) {
  using audit::reals;
  for (const int64_t key_heads : {1, 2, 4}) {
    const at::Tensor query = reals({3, 8, 5, 6}), key = reals({3, key_heads, 7, 6}),
                     value = reals({3, key_heads, 7, 2}), grad = reals({3, 8, 5, 2});
    for (const at::Tensor& mask : {at::Tensor(), reals({5, 7}), audit::bools({3, 1, 5, 7}), reals({8, 1, 1})}) {
      const Named rest = {{"is_causal", !mask.defined()}, {"scale", 0.3}, {"leaves", std::vector<int64_t>{2, 3, 1}}};
      std::vector<at::Tensor> forward = {query, key, value};
      if (mask.defined()) {
        forward.push_back(mask);
      }
      samples.push_back(audit::sample("tessera::attention", forward, rest));
      forward.insert(forward.begin(), grad);
      samples.push_back(audit::sample("tessera::attention_backward", forward, rest));
    }
  }
  for (const int64_t dim : {0, 1}) {
    samples.push_back(audit::sample("aten::_safe_softmax", {reals({13, 20})}, {{"dim", dim}}));
  }
}

at::Tensor bits_of(const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) {
    return tensor;
  }
  const at::Tensor one_nan = tensor.contiguous().masked_fill(tensor.isnan(), std::numeric_limits<double>::quiet_NaN());
  return tensor.element_size() == 8   ? one_nan.view(at::kLong)
         : tensor.element_size() == 4 ? one_nan.view(at::kInt)
                                      : one_nan.view(at::kShort);
}

}  // namespace

const Samples& exact_samples() {
  static const Samples samples = [] {
    Samples all = audit::all_samples();
    add_own_samples(all);
    add_attention_samples(all);
    add_convolution_samples(all);
    add_scaled_samples(all);
    return all;
  }();
  return samples;
}

bool writes(const Sample& sample) { return rules::testing::find_op(sample.op).schema().is_mutable(); }

at::Tensor wild(c10::IntArrayRef sizes, c10::ScalarType dtype, int64_t salt) {
  const int64_t numel = c10::multiply_integers(sizes);
  const at::Tensor index = at::arange(numel, at::kLong) * 2654435761 + salt * 40503 + 12345;
  const at::Tensor mantissa = (index.remainder(100003).to(at::kDouble) / 50001.5 - 1),
                   exponent = (index.floor_divide(64) + salt).remainder(41) - 20;
  return (mantissa * exponent.to(at::kDouble).exp2()).reshape(sizes).to(dtype);
}

Sample made_wild(Sample sample, c10::ScalarType dtype) {
  std::vector<at::Tensor> tensors;
  for (const auto& [tensor, arg] : rules::testing::tensors_of(sample.args)) {
    const bool is_real = tensor.is_floating_point();
    at::Tensor value = is_real ? at::empty_like(tensor, tensor.options().dtype(dtype)) : tensor;
    if (is_real) {
      value.copy_(wild(tensor.sizes(), dtype, static_cast<int64_t>(tensors.size())));
    }
    tensors.push_back(value);
  }
  sample.args = rules::testing::with_tensors(sample.args, tensors);
  return sample;
}

CallOutcome run_call(const Sample& sample, const Mesh& mesh, const std::vector<Placements>& layouts) {
  const at::NoGradGuard no_grad;
  CallOutcome outcome;
  try {
    std::vector<at::Tensor> tensors;
    static const dtensor::ParameterInfo weight = {"weight", 1, {}, {}};
    for (const auto& [tensor, arg] : rules::testing::tensors_of(sample.args)) {
      tensors.push_back(distribute(tensor, mesh, layouts[tensors.size()]));
      if (sample.op == "tessera::contract" && tensors.size() == 2 && tensor.dim() == 2) {
        dtensor::meta_of(tensors[1])->parameter = &weight;
      }
    }
    torch::jit::Stack stack = rules::testing::with_tensors(sample.args, tensors);
    rules::testing::find_op(sample.op).callBoxed(stack);
    for (const auto& [tensor, arg] : rules::testing::tensors_of(stack)) {
      outcome.tensors.push_back(full_tensor(tensor).clone());
    }
  } catch (const c10::Error& error) {
    outcome.error = base::message_of(error);
  }
  return outcome;
}

std::string difference(const CallOutcome& found, const CallOutcome& expected) {
  if (!found.error.empty()) {
    return found.error;
  }
  if (found.tensors.size() != expected.tensors.size()) {
    return "another number of results";
  }
  for (size_t i = 0; i < found.tensors.size(); ++i) {
    const at::Tensor &a = found.tensors[i], &b = expected.tensors[i];
    if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
      return c10::str("result ", i, " is of ", a.sizes(), a.dtype());
    }
    const at::Tensor other = bits_of(a).ne(bits_of(b));
    if (other.any().item<bool>()) {
      return c10::str("result ", i, ": ", other.sum().item<int64_t>(), " of ", a.numel(), " elements differ");
    }
  }
  return "";
}

}  // namespace tessera::ranks
