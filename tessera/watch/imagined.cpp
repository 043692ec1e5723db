#include "tessera/watch/imagined.h"

#include <set>

#include "tessera/watch/imagined_memory.h"
#include "tessera/watch/imagined_ops.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/base/error.h"
#include "tessera/base/values.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::watch {

struct Imagined::State {
  std::shared_ptr<ImaginedBytes> bytes = std::make_shared<ImaginedBytes>();
  base::WithoutValues without_values;
  ImaginedMemory memory{bytes};
  c10::impl::IncludeDispatchKeyGuard key{kImagined};
};

Imagined::Imagined() {
  TESSERA_CHECK(!ImaginedMemory::is_on(), "[imagined] the thread imagines already; accepted: one at a time");
  register_imagined_ops();
  state_ = std::make_unique<State>();
}

Imagined::~Imagined() = default;

int64_t Imagined::live() const { return state_->bytes->live; }
int64_t Imagined::peak() const { return state_->bytes->peak; }
void Imagined::reset_peak() { state_->bytes->peak = state_->bytes->live.load(); }

int64_t bytes_of_parts(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor part = dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor;
    if (part.defined() && seen.insert(part.storage().unsafeGetStorageImpl()).second) {
      bytes += static_cast<int64_t>(part.storage().nbytes());
    }
  }
  return bytes;
}

}  // namespace tessera::watch
