// An einsum of two operands, taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::rules {

// One letter for each dim: `bsk,jk->bsj`. Immutable; one for each text and thread.
struct Equation {
  // Throws if the text has not that form.
  explicit Equation(std::string_view text);

  std::string a, b, out;  // the letters of each operand and of the result

  // The letters of the product, by where they stand: in both operands and the result, in one operand and the result, in
  // both operands alone.
  std::string batch, rows, columns, summed;

  // The dims of a in the order batch, rows, summed; of b in the order batch, summed, columns; of what stands in the
  // order batch, rows, columns in the order of the result. Empty where they lie so already.
  std::vector<int64_t> order_a, order_b, order_out;

  // The equations of the gradients: of the result's gradient and the other operand.
  std::string gradient_a, gradient_b;

  // The one of this thread; valid as long as the thread lives.
  static const Equation& of(std::string_view text);
};

// Calls the operator `tessera::contract(Tensor a, Tensor b, str equation, Tensor? like=None, Tensor? addend=None) ->
// Tensor`, which the dtensor floor defines: an einsum of two operands, `bsk,jk->bsj`. One letter for each dim; letters
// that the result lacks are summed; no letter stands twice in one operand; every letter of the result stands in an
// operand, and every summed letter in both. `like` only says how the result should lie on the mesh. `addend`, of the
// sizes of the last dims of the result, is added to it. Differentiable any number of times: its gradients are
// contractions, and sums.
at::Tensor contract(const at::Tensor& a, const at::Tensor& b, std::string_view equation,
                    const std::optional<at::Tensor>& like = std::nullopt,
                    const std::optional<at::Tensor>& addend = std::nullopt);

// The equation of an einsum (spaces allowed, the result perhaps not named) as one of the form above. None if it is
// another kind: other than two operands, an ellipsis, a letter twice in an operand or in one of the three alone, a dim
// of one that broadcasts.
std::optional<std::string> contraction_of(std::string_view einsum, at::TensorList tensors);

}  // namespace tessera::rules
