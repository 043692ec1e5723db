// TensorImpls of our own, made in fewer steps than libtorch's.
#pragma once

#include <utility>

#include <c10/core/TensorImpl.h>

namespace tessera::dtensor {

// A tensor that gives others its sizes, strides and what follows from them, so that they are worked out once.
struct Prototype {
  c10::intrusive_ptr<c10::TensorImpl> made;
  bool is_worthwhile = false;  // from the second tensor on: of many plans there is one call
};

// A TensorImpl that is given its sizes and its counter of writes.
class TensorLike : public c10::TensorImpl {
 protected:
  // As libtorch makes it: it counts its own writes, or is a tensor of inference mode while that is on.
  TensorLike(c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device) : TensorImpl(keys, dtype, device) {}

  // Of the device of `storage`. No counter of writes is made for it, as its own stands below. The shape is not set.
  TensorLike(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::VariableVersion writes)
      : TensorImpl(VIEW, std::move(storage), keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView, dtype) {
    count_writes_with(keys, std::move(writes));
  }

  // Writes that are not counted (VariableVersion()) make it a tensor of inference mode.
  void count_writes_with(c10::DispatchKeySet keys, c10::VariableVersion writes) {
    keys = keys - c10::python_ks;  // no Python object stands behind it
    key_set_ = writes.enabled() ? keys : keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    version_counter_ = std::move(writes);
  }

  void copy_shape(const TensorLike& like) {
    sizes_and_strides_ = like.sizes_and_strides_;
    numel_ = like.numel_;
    is_contiguous_ = like.is_contiguous_;
    is_channels_last_ = like.is_channels_last_;
    is_channels_last_contiguous_ = like.is_channels_last_contiguous_;
    is_channels_last_3d_ = like.is_channels_last_3d_;
    is_channels_last_3d_contiguous_ = like.is_channels_last_3d_contiguous_;
    is_non_overlapping_and_dense_ = like.is_non_overlapping_and_dense_;
  }
};

}  // namespace tessera::dtensor
