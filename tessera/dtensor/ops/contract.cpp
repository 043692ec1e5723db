#include "tessera/dtensor/ops/contract.h"

#include <numeric>

#include <ATen/ops/add.h>
#include <ATen/ops/einsum_native.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/kept_operand.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/engine/equation.h"
#include "tessera/rules/engine/plain_contraction.h"

namespace tessera::dtensor {

namespace {

using rules::contract;
using torch::autograd::variable_list;

// A factor in a gradient.
at::Tensor conjugate(const at::Tensor& saved) { return saved.is_complex() ? saved.conj() : saved; }

// The gradient of what was added to the last dims.
at::Tensor summed_to(const at::Tensor& grad, c10::IntArrayRef sizes) {
  const auto count = grad.dim() - static_cast<int64_t>(sizes.size());
  if (count == 0 || sizes != grad.sizes().slice(static_cast<size_t>(count))) {
    return at::sum_to(grad, sizes);
  }
  c10::SmallVector<int64_t, 6> dims(static_cast<size_t>(count));
  std::iota(dims.begin(), dims.end(), 0);
  return at::sum(grad, dims);
}

// Keeps each operand only for the other's gradient.
struct ContractBackward final : torch::autograd::Node {
  std::string gradient_a, gradient_b;  // equations
  KeptOperand a, b;
  std::optional<at::Tensor> like_a, like_b;    // a parameter's gradient should lie as the parameter does
  std::optional<std::vector<int64_t>> addend;  // its sizes

  variable_list apply(variable_list&& grads) override {
    variable_list result(num_outputs());  // an addend may be one without a gradient
    const at::Tensor& grad = grads.at(0);
    if (!grad.defined()) {
      return result;
    }
    if (task_should_compute_output(0)) {
      result[0] = contract(grad, conjugate(b.unpack()), gradient_a, like_a);
    }
    if (task_should_compute_output(1)) {
      result[1] = contract(grad, conjugate(a.unpack()), gradient_b, like_b);
    }
    if (addend && task_should_compute_output(2)) {
      result[2] = summed_to(grad, *addend);
    }
    return result;
  }

  void release_variables() override {
    a.release();
    b.release();
    like_a.reset();
    like_b.reset();
  }

  std::string name() const override { return "ContractBackward"; }
};

// The result, and its node in the graph where gradients are wanted.
at::Tensor contract_backwards(const at::Tensor& a, const at::Tensor& b, c10::string_view text,
                              const std::optional<at::Tensor>& like, const std::optional<at::Tensor>& addend) {
  const bool with_a = at::GradMode::is_enabled() && a.requires_grad(),
             with_b = at::GradMode::is_enabled() && b.requires_grad(),
             with_addend = at::GradMode::is_enabled() && addend && addend->requires_grad();
  if (!with_a && !with_b && !with_addend) {
    at::AutoDispatchBelowADInplaceOrView below;
    return contract(a, b, text, like, addend);
  }
  auto node = make_node<ContractBackward>();  // before the call: its sequence number names the forward plan
  node->set_next_edges(addend ? torch::autograd::collect_next_edges(a, b, *addend)
                              : torch::autograd::collect_next_edges(a, b));
  if (with_addend) {
    node->addend = addend->sizes().vec();
  }
  const rules::Equation& equation = rules::Equation::of(text);
  if (with_a) {
    node->gradient_a = equation.gradient_a;
    node->b = KeptOperand(b);
    node->like_a = layout_of_parameter(a);
  }
  if (with_b) {
    node->gradient_b = equation.gradient_b;
    node->a = KeptOperand(a);
    node->like_b = layout_of_parameter(b);
  }
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = contract(a, b, text, like, addend);
  }
  torch::autograd::set_history(result, node);
  return result;
}

// The derivative along the operands' tangents, of which at least one is there (forward mode).
at::Tensor tangent_of_product(const at::Tensor& a, const at::Tensor& b, c10::string_view text) {
  const at::Tensor &along_a = a._fw_grad(0), &along_b = b._fw_grad(0);
  const at::Tensor of_a = along_a.defined() ? contract(along_a, b._fw_primal(0), text) : at::Tensor();
  const at::Tensor of_b = along_b.defined() ? contract(a._fw_primal(0), along_b, text) : at::Tensor();
  return of_a.defined() && of_b.defined() ? at::add(of_a, of_b) : of_a.defined() ? of_a : of_b;
}

at::Tensor contract_autograd(const at::Tensor& a, const at::Tensor& b, c10::string_view text,
                             const std::optional<at::Tensor>& like, const std::optional<at::Tensor>& addend) {
  if (addend && (has_tangent(a) || has_tangent(b) || has_tangent(*addend))) {
    return at::add(contract_autograd(a, b, text, like, std::nullopt), *addend);
  }
  at::Tensor result = contract_backwards(a, b, text, like, addend);
  if (has_tangent(a) || has_tangent(b)) {
    result._set_fw_grad(tangent_of_product(a, b, text), /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

std::string letters(int64_t count, char first) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += static_cast<char>(first + i);
  }
  return text;
}

// Whether one contraction takes it as its addend: a row that is added to others of its dtype. In `exact` the sum is a
// call of its own.
bool is_row_of(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight) {
  const RankState* state = RankState::current();
  return bias.dim() == 1 && bias.size(0) == weight.size(0) && input.dim() >= 2 &&
         bias.scalar_type() == input.scalar_type() && !(state && state->exact.lattice());
}

// Random numbers are named by what was read, how often: the same where the sum is a call of its own.
void note_reading(const at::Tensor& weight) {
  RankState* state = RankState::current();
  const ParameterInfo* parameter = is_dtensor(weight) ? meta_of(weight)->parameter : nullptr;
  if (state && parameter && (!torch::autograd::get_current_node() || state->pass.is_recomputing())) {
    state->pass.sites.note_read(parameter);
  }
}

// The product of linear(x, w), over the last dims.
std::string equation_of_linear(const at::Tensor& input) {
  const std::string rows = letters(input.dim() - 1, 'a');
  return rows + "y,zy->" + rows + "z";
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TESSERA_CHECK(input.dim() >= 1 && (weight.dim() == 1 || weight.dim() == 2) && input.size(-1) == weight.size(-1),
                "[linear] input ", input.sizes(), " does not fit a weight of ", weight.sizes());
  const bool has_bias = bias && bias->defined();
  if (weight.dim() == 1) {  // the output's last dim is left out
    const at::Tensor product = at::matmul(input, weight);
    return has_bias ? at::add(product, *bias) : product;
  }
  const std::string equation = equation_of_linear(input);
  if (!has_bias) {
    return contract(input, weight, equation);
  }
  if (!is_row_of(*bias, input, weight)) {
    return at::add(contract(input, weight, equation), *bias);
  }
  note_reading(weight);
  return contract(input, weight, equation, std::nullopt, bias);
}

// Of `w.t()`, by which C++'s torch::nn::Linear multiplies: its gradient would be made in one order of memory, and
// copied to that of w.
bool lies_transposed(const at::Tensor& b) {
  return b.dim() == 2 && b.size(0) > 1 && b.size(1) > 1 && b.stride(0) == 1 && b.stride(1) == b.size(0);
}

// matmul with torch's broadcasting rules; batch dims of size one and missing ones are not part of the operand's
// letters.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  TESSERA_CHECK(a.dim() >= 1 && b.dim() >= 1, "[matmul] both operands need at least one dim; got ", a.dim(), " and ",
                b.dim());
  if (at::GradMode::is_enabled() && b.requires_grad() && lies_transposed(b) && a.size(-1) == b.size(0)) {
    return contract(a, b.t(), equation_of_linear(a));
  }
  const at::Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a;
  const at::Tensor right = b.dim() == 1 ? b.unsqueeze(1) : b;
  const int64_t batch_dims = std::max(left.dim(), right.dim()) - 2;
  const std::string all = letters(batch_dims, 'a');
  const auto own = [&](const at::Tensor& tensor) { return all.substr(batch_dims - (tensor.dim() - 2)); };
  at::Tensor x = left, y = right;
  std::string x_batch = own(left), y_batch = own(right), out_batch = all;
  std::vector<int64_t> ones;  // batch dims that are one in every operand that has them
  for (int64_t i = batch_dims; i-- > 0;) {
    const int64_t xd = i - (batch_dims - (left.dim() - 2)), yd = i - (batch_dims - (right.dim() - 2));
    const bool in_x = xd >= 0, in_y = yd >= 0;
    const bool drop_x = in_x && left.size(xd) == 1 && in_y && right.size(yd) != 1;
    const bool drop_y = in_y && right.size(yd) == 1 && in_x && left.size(xd) != 1;
    if (drop_x) {
      x = x.squeeze(xd), x_batch.erase(x_batch.find(all[i]), 1);
    }
    if (drop_y) {
      y = y.squeeze(yd), y_batch.erase(y_batch.find(all[i]), 1);
    }
  }
  at::Tensor product = contract(x, y, x_batch + "xy," + y_batch + "yz->" + out_batch + "xz");
  if (a.dim() == 1) {
    product = product.squeeze(-2);
  }
  if (b.dim() == 1) {
    product = product.squeeze(-1);
  }
  return product;
}

// A contraction where it is one; otherwise libtorch's own, by products and sums.
at::Tensor einsum(c10::string_view equation, at::TensorList tensors, at::OptionalIntArrayRef path) {
  const auto contraction = rules::contraction_of(equation, tensors);
  return contraction ? contract(tensors[0], tensors[1], *contraction) : at::native::einsum(equation, tensors, path);
}

}  // namespace

TORCH_LIBRARY(tessera, m) {
  m.def("contract(Tensor a, Tensor b, str equation, Tensor? like=None, Tensor? addend=None) -> Tensor");
  m.impl("contract", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rules::contract_plain));
  m.impl("contract", c10::DispatchKey::Autograd, TORCH_FN(contract_autograd));
}

void register_contract_kernels(KernelRegistry& registry) {
  for (torch::Library* library : registry.before_autograd()) {
    library->impl("linear", TORCH_FN(linear));
    library->impl("matmul", TORCH_FN(matmul));
    library->impl("einsum", TORCH_FN(einsum));
  }
}

}  // namespace tessera::dtensor
