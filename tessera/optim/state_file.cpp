#include "tessera/optim/state_file.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "tessera/base/freed_memory.h"
#include "tessera/base/page_file.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::optim {
namespace {

// The memory of a plain tensor, or of a rank's part.
const at::Tensor& part_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::meta_of(tensor)->local : tensor;
}

bool is_alone(const at::Tensor& part) {
  return part.is_cpu() && part.is_non_overlapping_and_dense() && part.storage().nbytes() == part.nbytes() &&
         part.storage().use_count() == 1;
}

}  // namespace

StateFile::StateFile(const std::string& folder)
    : file_(std::make_shared<base::PageFile>(folder, "StateFile", "an optimizer's state")) {}

void StateFile::keep(const std::vector<at::Tensor>& state) {
  const at::NoGradGuard no_grad;
  const int64_t bytes_before = file_->bytes();
  for (const at::Tensor& tensor : state) {
    const at::Tensor part = tensor.defined() ? part_of(tensor) : tensor;
    if (!part.defined() || part.nbytes() < base::PageFile::kPage || !is_alone(part) ||
        file_->has(part.const_data_ptr())) {
      continue;
    }
    dtensor::LocalScope scope;
    void* begin = file_->add(part.nbytes());
    const at::Tensor moved = at::from_blob(
        begin, part.sizes(), part.strides(), [file = file_](void* at) { file->remove(at); }, part.options());
    moved.copy_(part);
    if (dtensor::is_dtensor(tensor)) {
      dtensor::Meta& meta = *dtensor::meta_of(tensor);
      meta.replace(moved, meta.spec);
    } else {
      tensor.unsafeGetTensorImpl()->set_storage_and_dtype(moved.storage(), moved.dtype());
    }
  }
  file_->write_back();
  file_->release_all();
  if (file_->bytes() > bytes_before) {
    base::give_back_freed_memory();
  }
}

int64_t StateFile::bytes() const { return file_->bytes(); }

}  // namespace tessera::optim
