#include "tessera/dtensor/view/view_part.h"

#include "tessera/base/error.h"
#include "tessera/base/pooled.h"

namespace tessera::dtensor {

namespace {

struct PartView final : TensorLike, base::Pooled<PartView> {
  PartView(const at::Tensor& part, const PartView& like)
      : TensorLike(c10::Storage(part.storage()), part.key_set(), part.dtype(),
                   part.unsafeGetTensorImpl()->version_counter()) {
    storage_offset_ = part.storage_offset();
    copy_shape(like);
  }

  // A prototype has no memory, so that it keeps none.
  PartView(const at::Tensor& part, c10::IntArrayRef sizes) : TensorLike(part.key_set(), part.dtype(), part.device()) {
    set_sizes_contiguous(sizes);
  }

  PartView(const at::Tensor& part, c10::IntArrayRef sizes, c10::IntArrayRef strides)
      : TensorLike(c10::Storage(part.storage()), part.key_set(), part.dtype(),
                   part.unsafeGetTensorImpl()->version_counter()) {
    set_sizes_and_strides(sizes, strides, part.storage_offset());
  }
};

}  // namespace

at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes, Prototype& prototype) {
  if (C10_UNLIKELY(!prototype.made)) {
    prototype.made = c10::make_intrusive<PartView>(part, sizes);
  }
  TESSERA_ASSERT(part.numel() == prototype.made->numel(), "a part of ", part.sizes(), " is viewed as ", sizes);
  return at::detail::make_tensor<PartView>(part, static_cast<const PartView&>(*prototype.made));
}

at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::detail::make_tensor<PartView>(part, sizes, strides);
}

}  // namespace tessera::dtensor
