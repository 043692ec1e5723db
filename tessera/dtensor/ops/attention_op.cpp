#include "tessera/dtensor/ops/attention_op.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/ops/attention_parts.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/rules/engine/dispatch_floats.h"
#include "tessera/rules/engine/dtypes.h"

namespace tessera::dtensor {

namespace {

using at::Tensor;
using kernels::Heads;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Mask = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// As the kernel reads it: neighbouring elements in the last dim, and no fewer bits than it computes with.
Tensor readable(const Tensor& x) {
  const Tensor wide = rules::widened(x);
  return wide.size(-1) == 1 || wide.stride(-1) == 1 ? wide : wide.contiguous();
}

template <typename T>
Heads<T> heads(const Tensor& x) {
  return {x.data_ptr<std::remove_const_t<T>>(), x.stride(0), x.stride(1), x.stride(2)};
}

struct Operands {
  Tensor query, key, value, mask;

  Operands(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& m)
      : query(readable(q)), key(readable(k)), value(readable(v)) {
    TESSERA_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) && q.size(0) == v.size(0) &&
                      k.size(1) == v.size(1) && k.size(2) == v.size(2) && q.size(3) == k.size(3) &&
                      q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
                  "[attention] query ", q.sizes(), ", key ", k.sizes(), ", value ", v.sizes(), " in ", q.scalar_type(),
                  ", ", k.scalar_type(), ", ", v.scalar_type(),
                  "; accepted: [samples, heads, positions, width] of one dtype that fit each other");
    TESSERA_CHECK(q.is_cpu() && k.is_cpu() && v.is_cpu(), "[attention] on ", q.device(),
                  "; accepted: tensors on the CPU");
    if (!m || !m->defined()) {
      return;
    }
    TESSERA_CHECK(m->scalar_type() == at::kBool || m->scalar_type() == q.scalar_type(), "[attention] a mask in ",
                  m->scalar_type(), "; accepted: bool, or ", q.scalar_type(), " as the query");
    std::vector<int64_t> sizes = m->sizes().vec();
    sizes.resize(std::max<size_t>(sizes.size(), 1));
    sizes.back() = k.size(2);
    mask = rules::widened(*m).expand(sizes).contiguous().expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }

  template <typename T>
  kernels::Attention<T> call(bool is_causal, double scale, c10::IntArrayRef leaves) const {
    const kernels::AttentionShape shape = {query.size(0), query.size(1), key.size(1),  query.size(2),
                                           key.size(2),   query.size(3), value.size(3)};
    kernels::Attention<T> call{.shape = shape,
                               .q = heads<const T>(query),
                               .k = heads<const T>(key),
                               .v = heads<const T>(value),
                               .scale = scale,
                               .is_causal = is_causal,
                               .key_leaf = leaves.at(0)};
    if (!mask.defined()) {
      return call;
    }
    mask.scalar_type() == at::kBool ? void(call.allowed = heads<const bool>(mask))
                                    : void(call.added = heads<const T>(mask));
    return call;
  }
};

Tensor attention_plain(const Tensor& query, const Tensor& key, const Tensor& value, const Mask& mask, bool is_causal,
                       double scale, c10::IntArrayRef leaves) {
  const Operands operands(query, key, value, mask);
  const Tensor out = at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, operands.query.options());
  rules::dispatch_floats(out, "attention", [&]<typename T>() {
    kernels::attention<T>(operands.call<T>(is_causal, scale, leaves), heads<T>(out));
  });
  return out.to(query.scalar_type());
}

Gradients attention_backward_plain(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                                   const Mask& mask, bool is_causal, double scale, c10::IntArrayRef leaves) {
  const Operands operands(query, key, value, mask);
  const Tensor rows = readable(grad);
  const auto options = operands.query.options();
  const Tensor dq = at::empty(query.sizes(), options), dk = at::empty(key.sizes(), options),
               dv = at::empty(value.sizes(), options);
  rules::dispatch_floats(dq, "attention_backward", [&]<typename T>() {
    kernels::attention_backward<T>(operands.call<T>(is_causal, scale, leaves), heads<const T>(rows),
                                   {.q = heads<T>(dq),
                                    .k = heads<T>(dk),
                                    .v = heads<T>(dv),
                                    .query_leaf = leaves.at(1),
                                    .group_leaf = leaves.at(2)});
  });
  const auto dtype = query.scalar_type();
  return {dq.to(dtype), dk.to(dtype), dv.to(dtype)};
}

Tensor call_attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tessera::attention", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const Mask&, bool, double, c10::IntArrayRef)>();
  return op.call(query, key, value, options.mask, options.is_causal, options.scale, options.leaves);
}

Gradients call_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::attention_backward", "")
                             .typed<Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Mask&,
                                              bool, double, c10::IntArrayRef)>();
  return op.call(grad, query, key, value, options.mask, options.is_causal, options.scale, options.leaves);
}

// Keeps the operands; the weights are computed again.
struct AttentionBackward final : torch::autograd::Node {
  SavedVariable query, key, value, mask;
  AttentionOptions options;

  variable_list apply(variable_list&& grads) override {
    const Tensor& grad = grads.at(0);
    if (!grad.defined()) {
      return variable_list(3);
    }
    const Tensor q = query.unpack(), k = key.unpack(), v = value.unpack();
    AttentionOptions all = options;
    if (const Tensor saved = mask.unpack(); saved.defined()) {
      all.mask = saved;
    }
    if (at::GradMode::is_enabled()) {
      const auto [dq, dk, dv] =
          gradients_by_parts(grad, q, k, v, all.mask,
                             {.is_causal = all.is_causal, .scale = all.scale, .with_groups = true, .widens = true});
      return {dq, dk, dv};
    }
    at::AutoDispatchBelowADInplaceOrView below;
    auto [dq, dk, dv] = call_backward(grad, q, k, v, all);
    return {dq, dk, dv};
  }

  void release_variables() override {
    for (SavedVariable* saved : {&query, &key, &value, &mask}) {
      saved->reset_data();
    }
  }

  std::string name() const override { return "AttentionBackward"; }
};

Tensor attention_autograd(const Tensor& query, const Tensor& key, const Tensor& value, const Mask& mask, bool is_causal,
                          double scale, c10::IntArrayRef leaves) {
  const AttentionOptions options{
      .mask = mask, .is_causal = is_causal, .scale = scale, .leaves = {leaves.at(0), leaves.at(1), leaves.at(2)}};
  if (has_tangent(query) || has_tangent(key) || has_tangent(value)) {
    return attention_by_parts(query, key, value, mask,
                              {.is_causal = is_causal, .scale = scale, .with_groups = true, .widens = true});
  }
  if (!at::GradMode::is_enabled() || !(query.requires_grad() || key.requires_grad() || value.requires_grad())) {
    at::AutoDispatchBelowADInplaceOrView below;
    return call_attention(query, key, value, options);
  }
  TESSERA_CHECK(!mask || !mask->requires_grad(), "[attention] has no gradient of its mask; detach it");
  auto node = make_node<AttentionBackward>();  // before the call: its sequence number names the forward plan
  node->set_next_edges(torch::autograd::collect_next_edges(query, key, value));
  node->options = {.is_causal = is_causal, .scale = scale, .leaves = options.leaves};
  node->query = SavedVariable(query, /*is_output=*/false);
  node->key = SavedVariable(key, /*is_output=*/false);
  node->value = SavedVariable(value, /*is_output=*/false);
  if (mask && mask->defined()) {
    node->mask = SavedVariable(*mask, /*is_output=*/false);
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = call_attention(query, key, value, options);
  }
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale, int[] leaves) -> "
      "Tensor");
  m.impl("attention", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(attention_plain));
  m.impl("attention", c10::DispatchKey::Autograd, TORCH_FN(attention_autograd));
  m.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float "
      "scale, int[] leaves) "
      "-> (Tensor, Tensor, Tensor)");
  m.impl("attention_backward", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(attention_backward_plain));
  m.impl("attention_backward", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
}

at::Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options) {
  return call_attention(query, key, value, options);
}

}  // namespace tessera::dtensor
