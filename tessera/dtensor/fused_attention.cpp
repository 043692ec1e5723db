#include "tessera/dtensor/fused_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "tessera/dtensor/attention.h"
#include "tessera/dtensor/node.h"

namespace tessera::dtensor {

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Keeps operands and results; the weights are computed again.
struct FusedAttentionBackward final : torch::autograd::Node {
  SavedVariable query, key, value, out, log_sums;
  bool is_causal = false;
  double scale = 1;

  variable_list apply(variable_list&& grads) override {
    const Tensor& grad = grads.at(0);
    if (!grad.defined()) return variable_list(3);
    const Tensor q = query.unpack(), k = key.unpack(), v = value.unpack();
    if (at::GradMode::is_enabled()) {
      const auto [dq, dk, dv] = gradients_by_parts(grad, q, k, v, /*mask=*/{}, {.is_causal = is_causal, .scale = scale});
      return {dq, dk, dv};
    }
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out.unpack(), log_sums.unpack(), /*dropout_p=*/0, is_causal, /*attn_mask=*/{}, scale);
    return {dq, dk, dv};
  }

  void release_variables() override {
    for (SavedVariable* saved : {&query, &key, &value, &out, &log_sums}) saved->reset_data();
  }

  std::string name() const override { return "FusedAttentionBackward"; }
};

std::tuple<Tensor, Tensor> call_fused(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal, double scale) {
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0, is_causal, /*attn_mask=*/{}, scale);
}

}  // namespace

Tensor fused_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal, double scale) {
  if (!at::GradMode::is_enabled() || !(query.requires_grad() || key.requires_grad() || value.requires_grad())) {
    return std::get<0>(call_fused(query, key, value, is_causal, scale));
  }
  auto node = make_node<FusedAttentionBackward>();  // before the call: its sequence number names the forward plan
  node->set_next_edges(torch::autograd::collect_next_edges(query, key, value));
  node->is_causal = is_causal;
  node->scale = scale;
  node->query = SavedVariable(query, /*is_output=*/false);
  node->key = SavedVariable(key, /*is_output=*/false);
  node->value = SavedVariable(value, /*is_output=*/false);
  auto [out, log_sums] = call_fused(query, key, value, is_causal, scale);
  node->out = SavedVariable(out.detach(), /*is_output=*/false);  // itself it would hold the node that holds it
  node->log_sums = SavedVariable(log_sums, /*is_output=*/false);
  torch::autograd::set_history(out, node);
  return out;
}

}  // namespace tessera::dtensor
