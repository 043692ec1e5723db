#include "tessera/dtensor/record/meta.h"

#include <c10/core/DispatchKeySet.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"

namespace tessera::dtensor {

namespace {

c10::DispatchKeySet dtensor_keys() {
  static const c10::DispatchKeySet keys =
      c10::DispatchKeySet(kKey) | c10::DispatchKeySet(c10::DispatchKey::AutocastCPU) |
      c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse3Bit);
  return keys;
}

// A TensorImpl that can be given sizes and a Meta from outside; nothing in it differs from its base afterwards.
struct Maker final : c10::TensorImpl, base::Pooled<Maker> {
  Maker(MetaPtr meta, c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype, c10::Device device)
      : TensorImpl(dtensor_keys(), dtype, device) {
    set_storage_access_should_throw();
    set_sizes_and_strides(sizes, strides);
    set_backend_meta(std::move(meta));
  }

  Maker(MetaPtr meta, const Maker& like) : TensorImpl(dtensor_keys(), like.data_type_, like.device_opt_) {
    set_storage_access_should_throw();
    sizes_and_strides_ = like.sizes_and_strides_;
    numel_ = like.numel_;
    is_contiguous_ = like.is_contiguous_;
    is_channels_last_ = like.is_channels_last_;
    is_channels_last_contiguous_ = like.is_channels_last_contiguous_;
    is_channels_last_3d_ = like.is_channels_last_3d_;
    is_channels_last_3d_contiguous_ = like.is_channels_last_3d_contiguous_;
    is_non_overlapping_and_dense_ = like.is_non_overlapping_and_dense_;
    set_backend_meta(std::move(meta));
  }
};

std::string no_storage() {
  return c10::str("A DTensor has no storage of its own: call ", base::in_library("to_local(x)"),
                  " for this rank's part, or ", base::in_library("full_tensor(x)"), " for the whole value.");
}

}  // namespace

Rare& Meta::make_rare() {
  if (!rare) {
    rare = std::make_unique<Rare>();
  }
  return *rare;
}

Moment Meta::moment() const {
  const Meta& held = memory();
  c10::TensorImpl* impl = held.local.unsafeGetTensorImpl();
  return {held.writes, epoch, impl->is_inference() ? 0 : impl->version_counter().current_version()};
}

bool Meta::unchanged_since(const Moment& then) const { return !memory().local.is_inference() && moment() == then; }

void Meta::replace(at::Tensor new_local, Spec new_spec) {
  local = std::move(new_local);
  spec = new_spec;
  ++epoch;
  if (!rare) {
    return;
  }
  rare->gathered = at::Tensor();
  rare->gathered_spec = Spec();
  if (rare->derived) {
    root.reset();
    rare->derived->shares_memory = false;
    rare->derived->made = rare->derived->base->moment();
  }
}

at::Tensor wrap(MetaPtr meta, Prototype* prototype) {
  const layout::SpecData& spec = *meta->spec;
  const c10::Device device = meta->local.device();
  const auto dtype = caffe2::TypeMeta::fromScalarType(spec.dtype);
  if (!prototype) {
    return at::detail::make_tensor<Maker>(std::move(meta), spec.sizes, spec.strides, dtype, device);
  }
  if (C10_UNLIKELY(!*prototype || (*prototype)->device() != device)) {
    *prototype = c10::make_intrusive<Maker>(MetaPtr(), spec.sizes, spec.strides, dtype, device);
  }
  return at::detail::make_tensor<Maker>(std::move(meta), static_cast<const Maker&>(**prototype));
}

at::Tensor wrap(at::Tensor local, Spec spec, const Origin* origin) {
  auto meta = c10::make_intrusive<Meta>();
  meta->local = std::move(local);
  meta->spec = spec;
  meta->origin = origin;
  return wrap(std::move(meta));
}

at::Tensor wrap_deferred(const at::Tensor& like, std::shared_ptr<Recorder> recorder, int64_t recorded) {
  auto meta = c10::make_intrusive<Meta>();
  Rare& rare = meta->make_rare();
  rare.recorder = std::move(recorder);
  rare.recorded = recorded;
  return at::detail::make_tensor<Maker>(std::move(meta), like.sizes(), like.strides(), like.dtype(),
                                        c10::Device(c10::kCPU));
}

void become(const at::Tensor& tensor, const at::Tensor& value) {
  TESSERA_ASSERT(is_dtensor(value));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_dtensor(tensor)) {
    // Aliases made by detach share the Meta; they follow.
    Meta* from = meta_of(value);
    Meta* to = meta_of(tensor);
    to->replace(from->local, from->spec);
    to->origin = from->origin;
    to->parameter = from->parameter;
    if (to->rare) {
      to->rare->recorder = nullptr;
    }
    return;
  }
  impl->shallow_copy_from(value.getIntrusivePtr());
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(no_storage());
}

}  // namespace tessera::dtensor
