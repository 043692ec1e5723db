#include "tessera/dtensor/dispatch/saved_results.h"

#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

void SavedResults::note(c10::ArrayRef<c10::IValue> values) {
  for_each_tensor(values, [&](const at::Tensor& tensor, int, int) { note(tensor); });
}

void SavedResults::note(const at::Tensor& tensor) {
  if (is_dtensor(tensor)) {
    noted_.emplace_back(MetaPtr::reclaim_copy(meta_of(tensor)));
  }
}

std::vector<MetaPtr> SavedResults::alive() {
  std::vector<MetaPtr> found;
  std::vector<c10::weak_intrusive_ptr<Meta>> left;
  for (auto& weak : noted_) {
    MetaPtr meta = weak.lock();
    if (meta && meta->local.defined()) {
      found.push_back(std::move(meta));
      left.push_back(std::move(weak));
    }
  }
  noted_ = std::move(left);
  return found;
}

}  // namespace tessera::dtensor
