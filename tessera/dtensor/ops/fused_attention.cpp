#include "tessera/dtensor/ops/fused_attention.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "tessera/base/values.h"
#include "tessera/dtensor/ops/attention_parts.h"
#include "tessera/dtensor/record/node.h"

namespace tessera::dtensor {

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// As the kernels read it: neighbouring elements in the last dim.
Tensor with_dense_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Heads behind positions in memory, and without values.
Tensor empty_heads(const Tensor& x, c10::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> turned = sizes.vec();
  std::swap(turned[1], turned[2]);
  return at::empty(turned, x.options().dtype(dtype)).transpose(1, 2);
}
Tensor empty_heads(const Tensor& x) { return empty_heads(x, x.sizes(), x.scalar_type()); }

// As the kernels make results.
std::tuple<Tensor, Tensor> fused_without_values(const Tensor& query, const Tensor&, const Tensor&, bool, double) {
  return {at::empty_like(with_dense_rows(query)),
          empty_heads(query, query.sizes().slice(0, 3), at::toOpMathType(query.scalar_type()))};
}

Gradients fused_backward_without_values(const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value,
                                        const Tensor&, const Tensor&, bool, double) {
  return {empty_heads(query), empty_heads(key), empty_heads(value)};
}

// libtorch's kernels take no tensors without elements, which a rank without heads has.
std::tuple<Tensor, Tensor> fused_plain(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                                       double scale) {
  if (query.numel() == 0) {
    return {at::zeros_like(query),
            at::zeros(query.sizes().slice(0, 3), query.options().dtype(at::toOpMathType(query.scalar_type())))};
  }
  if (!base::has_values()) {
    return fused_without_values(query, key, value, is_causal, scale);
  }
  return at::_scaled_dot_product_flash_attention_for_cpu(with_dense_rows(query), with_dense_rows(key),
                                                         with_dense_rows(value),
                                                         /*dropout_p=*/0, is_causal,
                                                         /*attn_mask=*/{}, scale);
}

Gradients fused_backward_plain(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& out, const Tensor& log_sums, bool is_causal, double scale) {
  if (query.numel() == 0) {
    return {at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)};
  }
  if (!base::has_values()) {
    return fused_backward_without_values(grad, query, key, value, out, log_sums, is_causal, scale);
  }
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      with_dense_rows(grad), with_dense_rows(query), with_dense_rows(key), with_dense_rows(value), out, log_sums,
      /*dropout_p=*/0, is_causal, /*attn_mask=*/{}, scale);
}

std::tuple<Tensor, Tensor> call_fused(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                                      double scale) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tessera::fused_attention", "").typed<decltype(fused_plain)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(query, key, value, is_causal, scale);
}

// Keeps operands and results; the weights are computed again.
struct FusedAttentionBackward final : torch::autograd::Node {
  SavedVariable query, key, value, out, log_sums;
  bool is_causal = false;
  double scale = 1;

  variable_list apply(variable_list&& grads) override {
    const Tensor& grad = grads.at(0);
    if (!grad.defined()) {
      return variable_list(3);
    }
    const Tensor q = query.unpack(), k = key.unpack(), v = value.unpack();
    if (at::GradMode::is_enabled()) {
      const auto [dq, dk, dv] =
          gradients_by_parts(grad, q, k, v, /*mask=*/{}, {.is_causal = is_causal, .scale = scale});
      return {dq, dk, dv};
    }
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tessera::fused_attention_backward", "")
                               .typed<decltype(fused_backward_plain)>();
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [dq, dk, dv] = op.call(grad, q, k, v, out.unpack(), log_sums.unpack(), is_causal, scale);
    return {dq, dk, dv};
  }

  void release_variables() override {
    for (SavedVariable* saved : {&query, &key, &value, &out, &log_sums}) {
      saved->reset_data();
    }
  }

  std::string name() const override { return "FusedAttentionBackward"; }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def("fused_attention(Tensor query, Tensor key, Tensor value, bool is_causal, float scale) -> (Tensor, Tensor)");
  m.impl("fused_attention", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(fused_plain));
  m.impl("fused_attention", c10::DispatchKey::Meta, TORCH_FN(fused_without_values));
  m.impl("fused_attention", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  m.def(
      "fused_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor log_sums, bool "
      "is_causal, float scale) "
      "-> (Tensor, Tensor, Tensor)");
  m.impl("fused_attention_backward", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(fused_backward_plain));
  m.impl("fused_attention_backward", c10::DispatchKey::Meta, TORCH_FN(fused_backward_without_values));
  m.impl("fused_attention_backward",
         torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
}

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
  node->out = SavedVariable(out.tensor_data(), /*is_output=*/false);  // itself it would hold the node that holds it
  node->log_sums = SavedVariable(log_sums, /*is_output=*/false);
  torch::autograd::set_history(out, node);
  return out;
}

}  // namespace tessera::dtensor
