#include "tessera/dtensor/contract.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/meta.h"
#include "tessera/dtensor/registry.h"

namespace tessera::dtensor {

namespace {

struct Equation {
  std::string a, b, out;
};

Equation parse(const std::string& text) {
  const size_t comma = text.find(','), arrow = text.find("->");
  TESSERA_CHECK(comma != std::string::npos && arrow != std::string::npos && comma < arrow, "[contract] malformed equation `", text,
                "`; accepted: `bsk,jk->bsj`");
  return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
}

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// The letters of a product: in both operands and the result (batch), in one operand and the result, in both and summed.
struct Roles {
  std::string batch, rows, columns, summed;
};

Roles roles_of(const Equation& equation) {
  Roles roles;
  for (char letter : equation.a) {
    if (has(equation.b, letter)) {
      (has(equation.out, letter) ? roles.batch : roles.summed) += letter;
    } else {
      roles.rows += letter;
    }
  }
  for (char letter : equation.b) {
    if (!has(equation.a, letter)) roles.columns += letter;
  }
  return roles;
}

std::vector<int64_t> order_of(const std::string& letters, const std::string& wanted) {
  std::vector<int64_t> order;
  for (char letter : wanted) order.push_back(static_cast<int64_t>(letters.find(letter)));
  return order;
}

int64_t extent_of(const at::Tensor& tensor, const std::string& letters, const std::string& wanted) {
  int64_t extent = 1;
  for (char letter : wanted) extent *= tensor.size(static_cast<int64_t>(letters.find(letter)));
  return extent;
}

// A plain tensor as [batch..., rows, columns] with the letter groups flattened.
at::Tensor as_matrix(const at::Tensor& tensor, const std::string& letters, const std::string& batch, const std::string& rows,
                     const std::string& columns) {
  const at::Tensor ordered = tensor.permute(order_of(letters, batch + rows + columns));
  const int64_t r = extent_of(tensor, letters, rows), c = extent_of(tensor, letters, columns);
  if (batch.empty()) return ordered.reshape({r, c});
  return ordered.reshape({extent_of(tensor, letters, batch), r, c});
}

// The contraction of plain tensors by one mm or bmm.
at::Tensor contract_plain(const at::Tensor& a, const at::Tensor& b, c10::string_view text, const std::optional<at::Tensor>&) {
  const Equation equation = parse(std::string(text));
  TESSERA_CHECK(a.dim() == static_cast<int64_t>(equation.a.size()) && b.dim() == static_cast<int64_t>(equation.b.size()),
                "[contract] `", std::string(text), "` does not fit operands of ", a.dim(), " and ", b.dim(), " dims");
  const Roles roles = roles_of(equation);
  const at::Tensor left = as_matrix(a, equation.a, roles.batch, roles.rows, roles.summed);
  const at::Tensor right = as_matrix(b, equation.b, roles.batch, roles.summed, roles.columns);
  const at::Tensor product = roles.batch.empty() ? at::mm(left, right) : at::bmm(left, right);

  const std::string letters = roles.batch + roles.rows + roles.columns;
  std::vector<int64_t> sizes;
  for (char letter : letters) {
    sizes.push_back(has(equation.a, letter) ? a.size(static_cast<int64_t>(equation.a.find(letter)))
                                            : b.size(static_cast<int64_t>(equation.b.find(letter))));
  }
  const at::Tensor shaped = product.view(sizes);
  return letters == equation.out ? shaped : shaped.permute(order_of(letters, equation.out)).contiguous();
}

class Contraction : public torch::autograd::Function<Contraction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b, const std::string& text,
                            const std::optional<at::Tensor>& like) {
    ctx->save_for_backward({a, b});
    ctx->saved_data["equation"] = text;
    at::AutoDispatchBelowADInplaceOrView below;
    return contract(a, b, text, like);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &grad = grads[0];
    const Equation eq = parse(ctx->saved_data["equation"].toStringRef());
    at::Tensor grad_a, grad_b;
    if (grad.defined() && ctx->needs_input_grad(0)) grad_a = contract(grad, b, eq.out + "," + eq.b + "->" + eq.a, parameter(a));
    if (grad.defined() && ctx->needs_input_grad(1)) grad_b = contract(grad, a, eq.out + "," + eq.a + "->" + eq.b, parameter(b));
    return {grad_a, grad_b, at::Tensor(), at::Tensor()};
  }

 private:
  // A parameter's gradient should lie as the parameter does.
  static std::optional<at::Tensor> parameter(const at::Tensor& operand) {
    if (is_dtensor(operand) && meta_of(operand)->parameter) return operand.detach();
    return std::nullopt;
  }
};

at::Tensor contract_autograd(const at::Tensor& a, const at::Tensor& b, c10::string_view equation, const std::optional<at::Tensor>& like) {
  return Contraction::apply(a, b, std::string(equation), like);
}

std::string letters(int64_t count, char first) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += static_cast<char>(first + i);
  return text;
}

// linear(x, w, b) as a contraction over the last dims.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TESSERA_CHECK(input.dim() >= 1 && weight.dim() == 2 && input.size(-1) == weight.size(1), "[linear] input ", input.sizes(),
                " does not fit a weight of ", weight.sizes());
  const std::string rows = letters(input.dim() - 1, 'a');
  const at::Tensor product = contract(input, weight, rows + "y,zy->" + rows + "z");
  return bias && bias->defined() ? at::add(product, *bias) : product;
}

// matmul with torch's broadcasting rules; batch dims of size one and missing ones are not part of the operand's letters.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  TESSERA_CHECK(a.dim() >= 1 && b.dim() >= 1, "[matmul] both operands need at least one dim; got ", a.dim(), " and ", b.dim());
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
    if (drop_x) x = x.squeeze(xd), x_batch.erase(x_batch.find(all[i]), 1);
    if (drop_y) y = y.squeeze(yd), y_batch.erase(y_batch.find(all[i]), 1);
  }
  at::Tensor product = contract(x, y, x_batch + "xy," + y_batch + "yz->" + out_batch + "xz");
  if (a.dim() == 1) product = product.squeeze(-2);
  if (b.dim() == 1) product = product.squeeze(-1);
  return product;
}

}  // namespace

TORCH_LIBRARY(tessera, m) {
  m.def("contract(Tensor a, Tensor b, str equation, Tensor? like=None) -> Tensor");
  m.impl("contract", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(contract_plain));
  m.impl("contract", c10::DispatchKey::Autograd, TORCH_FN(contract_autograd));
}

at::Tensor contract(const at::Tensor& a, const at::Tensor& b, const std::string& equation, const std::optional<at::Tensor>& like) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::contract", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, c10::string_view, const std::optional<at::Tensor>&)>();
  return op.call(a, b, equation, like);
}

void register_contract_kernels(KernelRegistry& registry) {
  torch::Library& library = registry.library("aten", c10::DispatchKey::AutogradPrivateUse3);
  library.impl("linear", TORCH_FN(linear));
  library.impl("matmul", TORCH_FN(matmul));
}

}  // namespace tessera::dtensor
