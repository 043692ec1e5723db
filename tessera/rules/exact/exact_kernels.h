// What stands in rows as their exact form: kernels, by kind.
#pragma once

#include "tessera/kernels/maps/elementwise.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::rules::exact {

inline bool always(const Call&) { return true; }

// It moves values, makes them or compares them, of any dtype.
inline constexpr ExactRule kMoves = {.moves = true, .takes_narrow = always};

// It combines elements by IEEE operations: the ordinary kernel is exact.
inline constexpr ExactRule kAsIs = {};

// Likewise, and of 16-bit numbers it rounds once, everywhere alike.
inline constexpr ExactRule kAsIsNarrow = {.takes_narrow = always};

// Its kernel computes an element by one function in its vectors and by another at their end, or its order of additions
// may depend on the rows, channels and memory that are there.
inline constexpr ExactRule kPerSample = {.per_sample = [](const Call&) { return true; }};

// Sums: tessera::contract, sum, embedding_dense_backward.
at::Tensor contract_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void contract_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
void run_outer_product(const LocalCall& call, torch::jit::Stack& stack);  // a contraction that sums nothing
at::Tensor sum_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void sum_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
at::Tensor embedding_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void embedding_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);

// Convolutions: aten::convolution, and tessera::convolution_weight, the gradient of its weight.
void run_convolution(const LocalCall& call, torch::jit::Stack& stack);
void run_convolution_weight(const LocalCall& call, torch::jit::Stack& stack);
void convolution_weight_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
void decompose_convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Functions of elements, and the derivatives of those of which kernels know them.
template <kernels::Function function>
void run_map(const LocalCall& call, torch::jit::Stack& stack);
void run_gelu(const LocalCall& call, torch::jit::Stack& stack);
void run_gelu_backward(const LocalCall& call, torch::jit::Stack& stack);
void run_silu_backward(const LocalCall& call, torch::jit::Stack& stack);

// Whole rows.
void run_softmax(const LocalCall& call, torch::jit::Stack& stack);
void run_softmax_backward(const LocalCall& call, torch::jit::Stack& stack);
void run_layer_norm(const LocalCall& call, torch::jit::Stack& stack);

// Steps of optimizers, for lists of parts.
void run_fused_adam(const LocalCall& call, torch::jit::Stack& stack);
void run_fused_adamw(const LocalCall& call, torch::jit::Stack& stack);
void run_fused_sgd(const LocalCall& call, torch::jit::Stack& stack);

// A product as a contraction of two arguments.
struct Product {
  const char* equation;
  const char* a;  // names of the factors
  const char* b;
};
void run_product(const Product& product, const c10::OperatorHandle& op, torch::jit::Stack& stack);
template <const Product& product>
void decompose_product(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  run_product(product, op, stack);
}

// As several exact operators.
void decompose_index_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_sum(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mean(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_norm(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_safe_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_scaled_add(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_scaled_sub(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_scaled_rsub(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_tanh_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_sigmoid_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mse_loss(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mse_loss_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_layer_norm_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tessera::rules::exact
