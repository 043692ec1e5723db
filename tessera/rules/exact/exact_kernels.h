// The kernels of the exact table, by family.
#pragma once

#include "tessera/rules/exact/exact.h"

namespace tessera::rules::exact {

// Sums: tessera::contract, sum, embedding_dense_backward.
at::Tensor contract_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void contract_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
at::Tensor sum_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void sum_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
at::Tensor embedding_node(const ExactCall& call, c10::ArrayRef<c10::IValue> args);
void embedding_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);

// Convolutions: aten::convolution, and tessera::convolution_weight, the gradient of its weight.
void run_convolution(const LocalCall& call, torch::jit::Stack& stack);
void run_convolution_weight(const LocalCall& call, torch::jit::Stack& stack);
void convolution_weight_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto);
void decompose_convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Functions of elements: exp, log, tanh, erf, sigmoid, silu, gelu, and the derivatives of the last two.
void run_map(const LocalCall& call, torch::jit::Stack& stack);
void run_map_backward(const LocalCall& call, torch::jit::Stack& stack);

// Whole rows.
void run_softmax(const LocalCall& call, torch::jit::Stack& stack);
void run_softmax_backward(const LocalCall& call, torch::jit::Stack& stack);
void run_layer_norm(const LocalCall& call, torch::jit::Stack& stack);
void run_embedding(const LocalCall& call, torch::jit::Stack& stack);

// As several exact operators. Products are mm, bmm, mv, dot, addmm, baddbmm, addmv.
std::vector<std::string_view> product_names();
void decompose_product(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_index_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_sum(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mean(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_norm(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_safe_softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_scaled_sum(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_tanh_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_sigmoid_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mse_loss(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_mse_loss_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void decompose_layer_norm_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tessera::rules::exact
