#include "tessera/checkpoint/ranks/parts.h"

#include <ATen/EmptyTensor.h>

#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {

Parts::Parts(const catalogue::Catalogue& catalogue, const std::vector<at::Tensor>& tensors)
    : catalogue_(catalogue), rank_(comm::RankContext::require().rank) {
  for (const auto& tensor : tensors) {
    const auto part = part_of(tensor);
    parts_.push_back({.tensor = part, .staging = {}, .missing = part.numel()});
  }
}

std::byte* Parts::memory_of(Part& part) {
  if (!part.staging.defined()) {
    part.staging = is_plain_memory(part.tensor)
                       ? part.tensor
                       : at::Tensor(at::detail::empty_cpu(part.tensor.sizes(), part.tensor.scalar_type()));
  }
  return static_cast<std::byte*>(part.staging.mutable_data_ptr());
}

void Parts::note_written(size_t entry, int64_t elements) {
  auto& part = parts_[entry];
  part.missing -= elements;
  if (part.missing > 0 || !part.staging.defined()) {
    return;
  }
  if (part.staging.is_same(part.tensor)) {
    part.tensor.unsafeGetTensorImpl()->bump_version();  // as any other write does
  } else {
    const dtensor::LocalScope scope;
    part.tensor.copy_(part.staging);
  }
  part.staging.reset();
}

}  // namespace tessera::checkpoint
