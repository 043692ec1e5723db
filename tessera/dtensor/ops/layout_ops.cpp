#include "tessera/dtensor/ops/layout_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/core/error_hook.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

using layout::Placements;
using torch::autograd::variable_list;

// A Spec as an operator's argument.
struct Layout : torch::CustomClassHolder {
  explicit Layout(Spec held) : spec(std::move(held)) {}
  Spec spec;
};
using LayoutPtr = c10::intrusive_ptr<Layout>;

at::Tensor redistribute_to(const at::Tensor& tensor, const LayoutPtr& to) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::redistribute", "")
                             .typed<at::Tensor(const at::Tensor&, const LayoutPtr&)>();
  return op.call(tensor, to);
}

at::Tensor call_from_plain(const at::Tensor& part, const LayoutPtr& layout) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::from_plain", "")
                             .typed<at::Tensor(const at::Tensor&, const LayoutPtr&)>();
  return op.call(part, layout);
}

// The record of a tensor whose part is its value.
Meta& readable_meta(RankState& state, const at::Tensor& tensor, const char* op) {
  Meta& meta = *meta_of(tensor);
  refresh(meta);
  if (!meta.is_pending()) {
    return meta;
  }
  const Unobserved unobserved(state);
  settle(state, meta, op);
  return meta;
}

at::Tensor moved_to(RankState& state, Meta& meta, const Spec& to, const char* op) {
  if (meta.spec == to) {
    return meta.local;
  }
  at::Tensor local = run_move(state.ctx, *state.engine.moves.find_or_plan(meta.spec, to), meta.local, op);
  if (meta.spec->has_partial && !to->has_partial && meta.spec->mesh == to->mesh) {
    meta.replace(local, to);
  }
  return local;
}

// A part of its own, if `local` is still that of `meta`. Copied at once: memory that copies itself when it is
// written first (_lazy_clone) may not be handed to a kernel that asks for its memory from several threads, which is an
// assertion of libtorch's.
at::Tensor unshared(const Meta& meta, const at::Tensor& local) {
  LocalScope scope;
  return local.is_alias_of(meta.local) ? local.clone() : local;
}

// The part under another name; writes to it count as writes to the tensor's memory.
at::Tensor shared_part(const Meta& meta) {
  c10::TensorImpl* part = meta.local.unsafeGetTensorImpl();
  c10::TensorImpl* owner = meta.memory().local.unsafeGetTensorImpl();
  if (part->is_inference() || owner->is_inference()) {
    return meta.local.detach();
  }
  part->set_version_counter(owner->version_counter());
  return at::Tensor(part->shallow_copy_and_detach(owner->version_counter(), /*allow_tensor_metadata_change=*/true));
}

at::Tensor run_redistribute(const at::Tensor& tensor, const LayoutPtr& layout) {
  RankState& state = RankState::require();
  Meta& meta = readable_meta(state, tensor, "redistribute");
  const Origin* origin = meta.origin;
  const Spec& from = meta.spec;
  const Spec to =
      Spec::make(layout->spec->mesh, layout->spec->placements, from->sizes, from->strides, from->dtype, from->labels);
  state.ctx.program.note("redistribute", base::hash_combine(from->hash, to->hash));
  at::Tensor local = moved_to(state, meta, to, "redistribute");
  return wrap(unshared(meta, std::move(local)), to, origin);
}

at::Tensor run_to_plain(const at::Tensor& tensor, bool whole) {
  RankState& state = RankState::require();
  const char* op = whole ? "full_tensor" : "to_local";
  Meta& meta = readable_meta(state, tensor, op);
  state.ctx.program.note(op, meta.spec->hash);
  if (!whole) {
    return shared_part(meta);
  }
  return unshared(meta, moved_to(state, meta, meta.spec.with(Placements(meta.spec->mesh.ndim())), op));
}

at::Tensor redistribute_kernel(const at::Tensor& tensor, const LayoutPtr& layout) {
  return comm::leave_to_front([&] { return run_redistribute(tensor, layout); });
}

at::Tensor to_plain_kernel(const at::Tensor& tensor, bool whole) {
  return comm::leave_to_front([&] { return run_to_plain(tensor, whole); });
}

at::Tensor from_plain_kernel(const at::Tensor& part, const LayoutPtr& layout) {
  LocalScope scope;
  return wrap(part.contiguous(), layout->spec);
}

using Transposed = std::function<at::Tensor(const at::Tensor& grad)>;

// Of a linear operator with one input.
struct LinearBackward final : torch::autograd::Node {
  Transposed transposed;

  variable_list apply(variable_list&& grads) override {
    return {grads.at(0).defined() ? transposed(grads[0]) : at::Tensor()};
  }
  std::string name() const override { return "LinearBackward"; }
};

// What `call` gives below autograd, with its node in the graph where a gradient is wanted; `make` makes the gradient's
// function.
template <typename Call, typename Make>
at::Tensor recorded(const at::Tensor& input, const Call& call, const Make& make) {
  Transposed transposed;
  if (at::GradMode::is_enabled() && input.requires_grad()) {
    transposed = make();
  }
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = call();
  }
  if (!transposed) {
    return result;
  }
  auto node = make_node<LinearBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  node->transposed = std::move(transposed);
  torch::autograd::set_history(result, node);
  return result;
}

bool holds_dtensor(const at::Tensor& tensor) { return is_dtensor(unwrapped(tensor)); }

// A layout for the gradient of `tensor`: its own without Partial. What vmap hides a dim of lies anywhere: Replicate.
LayoutPtr layout_of_gradient(const at::Tensor& tensor, bool whole) {
  const at::Tensor& inner = unwrapped(tensor);
  TESSERA_CHECK(is_dtensor(inner), "[tessera::", whole ? "to_plain" : "redistribute",
                "] expected a DTensor, got a plain tensor of ", tensor.sizes());
  const Spec& spec = meta_of(inner)->spec;
  if (!whole && inner.dim() == tensor.dim()) {
    return c10::make_intrusive<Layout>(spec.with(without_partial(spec->placements)));
  }
  return c10::make_intrusive<Layout>(
      Spec::make(spec->mesh, Placements(spec->mesh.ndim()), tensor.sizes(), tensor.strides(), spec->dtype));
}

// The tangent as a DTensor: a plain one counts as replicated.
at::Tensor tangent_of(const at::Tensor& tensor) {
  const at::Tensor& along = tensor._fw_grad(/*level=*/0);
  return holds_dtensor(along) ? along : at::add(at::zeros_like(tensor._fw_primal(/*level=*/0)), along);
}

at::Tensor redistribute_autograd(const at::Tensor& tensor, const LayoutPtr& to) {
  // The gradient goes back to the mesh that the tensor came from; on one mesh it stays where it is.
  const auto back = [&]() -> Transposed {
    return [from = layout_of_gradient(tensor, /*whole=*/false)](const at::Tensor& grad) {
      const at::Tensor& inner = unwrapped(grad);
      return !is_dtensor(inner) || meta_of(inner)->spec->mesh == from->spec->mesh ? grad : redistribute_to(grad, from);
    };
  };
  at::Tensor result = recorded(tensor, [&] { return redistribute_to(tensor, to); }, back);
  if (has_tangent(tensor)) {
    result._set_fw_grad(redistribute_to(tangent_of(tensor), to), /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

// A part's tangent is the part of the tangent where the tensor lies.
at::Tensor plain_tangent(const at::Tensor& tensor, bool whole) {
  const at::Tensor& along = tensor._fw_grad(/*level=*/0);
  if (whole) {
    return holds_dtensor(along) ? call_to_plain(along, whole) : along;
  }
  const Spec& spec = meta_of(unwrapped(tensor))->spec;
  using enum layout::ReduceOp;
  TESSERA_CHECK(!spec->is_merged_by({kMax, kMin, kProd}), "[to_local] forward mode: the terms of ", spec.str(),
                " have no derivative of their own (rank ", RankState::require().ctx.rank,
                "). Redistribute it first: the derivative is that of the whole value.");
  return call_to_plain(call_redistribute(tangent_of(tensor), spec), whole);
}

at::Tensor to_plain_autograd(const at::Tensor& tensor, bool whole) {
  const auto back = [&]() -> Transposed {
    return [layout = layout_of_gradient(tensor, whole)](const at::Tensor& grad) {
      return holds_dtensor(grad) ? grad : call_from_plain(grad, layout);
    };
  };
  at::Tensor result = recorded(tensor, [&] { return call_to_plain(tensor, whole); }, back);
  if (has_tangent(tensor)) {
    result._set_fw_grad(plain_tangent(tensor, whole), /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

at::Tensor from_plain_autograd(const at::Tensor& part, const LayoutPtr& layout) {
  const auto back = [&]() -> Transposed {
    return [layout](const at::Tensor& grad) { return call_to_plain(redistribute_to(grad, layout), /*whole=*/false); };
  };
  at::Tensor result = recorded(part, [&] { return call_from_plain(part, layout); }, back);
  if (has_tangent(part)) {
    result._set_fw_grad(call_from_plain(part._fw_grad(/*level=*/0), layout), /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

using BatchDim = std::optional<int64_t>;

// Inside vmap: `call` on all samples at once, and the dim that they lie along; nothing if every sample has the same
// tensor.
template <typename Call>
at::Tensor on_batch(const at::Tensor& tensor, const Call& call) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const auto layer = at::functorch::maybeCurrentDynamicLayer();
  TESSERA_ASSERT(layer);
  const auto [value, dim] = at::functorch::unwrapTensorAtLevel(tensor, layer->layerId());
  return at::functorch::makeBatched(call(value, dim), dim, layer->layerId());
}

// The layout of one sample as that of all of them, in `batch`: the dim that they lie along is not cut.
LayoutPtr of_batch(const LayoutPtr& sample, const at::Tensor& batch, BatchDim dim) {
  if (!dim) {
    return sample;
  }
  const layout::SpecData& spec = *sample->spec;
  const Placements placements = layout::with_dims(spec.placements, [&](int64_t d) { return d >= *dim ? d + 1 : d; });
  std::vector<int64_t> sizes = spec.sizes;
  sizes.insert(sizes.begin() + *dim, batch.size(*dim));
  return c10::make_intrusive<Layout>(Spec::contiguous(spec.mesh, placements, sizes, spec.dtype));
}

at::Tensor redistribute_batch(const at::Tensor& tensor, const LayoutPtr& to) {
  return on_batch(tensor,
                  [&](const at::Tensor& all, BatchDim dim) { return redistribute_to(all, of_batch(to, all, dim)); });
}

// A part is asked for only of what redistribute_batch placed.
at::Tensor to_plain_batch(const at::Tensor& tensor, bool whole) {
  return on_batch(tensor, [&](const at::Tensor& all, BatchDim) { return call_to_plain(all, whole); });
}

at::Tensor from_plain_batch(const at::Tensor& part, const LayoutPtr& layout) {
  return on_batch(
      part, [&](const at::Tensor& all, BatchDim dim) { return call_from_plain(all, of_batch(layout, all, dim)); });
}

}  // namespace

const at::Tensor& unwrapped(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor)) {
    return unwrapped(wrapper->value());
  }
  if (const auto* batch = at::functorch::maybeGetBatchedImpl(tensor)) {
    return unwrapped(batch->value());
  }
  return tensor;
}

at::Tensor call_redistribute(const at::Tensor& tensor, const Spec& to) {
  return redistribute_to(tensor, c10::make_intrusive<Layout>(to));
}

at::Tensor call_to_plain(const at::Tensor& tensor, bool whole) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::to_plain", "")
                             .typed<at::Tensor(const at::Tensor&, bool)>();
  return op.call(tensor, whole);
}

at::Tensor part_outside_program(const at::Tensor& tensor) {
  const Meta& meta = *meta_of(tensor);
  TESSERA_CHECK(!meta.is_pending() && !meta.derived(), "[part_outside_program] ", meta.spec.str(), " is ",
                meta.derived() ? "a view that its base makes again" : "a gradient that waits for other samples",
                " (rank ", RankState::require().ctx.rank, "); accepted: its copy, x.clone()");
  return shared_part(meta);
}

at::Tensor call_from_plain(const at::Tensor& part, const Spec& layout) {
  return call_from_plain(part, c10::make_intrusive<Layout>(layout));
}

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.class_<Layout>("Layout");
  m.def("redistribute(Tensor tensor, __torch__.torch.classes.tessera.Layout to) -> Tensor");
  m.impl("redistribute", kKey, TORCH_FN(redistribute_kernel));
  m.impl("redistribute", c10::DispatchKey::Autograd, TORCH_FN(redistribute_autograd));
  m.impl("redistribute", c10::DispatchKey::FuncTorchBatched, TORCH_FN(redistribute_batch));
  m.def("to_plain(Tensor tensor, bool whole) -> Tensor");
  m.impl("to_plain", kKey, TORCH_FN(to_plain_kernel));
  m.impl("to_plain", c10::DispatchKey::Autograd, TORCH_FN(to_plain_autograd));
  m.impl("to_plain", c10::DispatchKey::FuncTorchBatched, TORCH_FN(to_plain_batch));
  m.def("from_plain(Tensor part, __torch__.torch.classes.tessera.Layout layout) -> Tensor");
  m.impl("from_plain", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(from_plain_kernel));
  m.impl("from_plain", c10::DispatchKey::Autograd, TORCH_FN(from_plain_autograd));
  m.impl("from_plain", c10::DispatchKey::FuncTorchBatched, TORCH_FN(from_plain_batch));
}

}  // namespace tessera::dtensor
