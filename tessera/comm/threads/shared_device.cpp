#include "tessera/comm/threads/shared_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"

namespace tessera::comm {

void verify_device(const Call& call) {
  const at::Device device = device_of(call);
  if (call.kind == Kind::kMerge || !device.is_cuda()) {
    verify_on_cpu(call, "rank threads");
  }
}

void verify_one_device(const std::vector<const Call*>& calls) {
  const at::Device device = device_of(*calls.front());
  for (const auto* call : calls) {
    TESSERA_CHECK(
        device_of(*call) == device, "[", name_of(call->kind), "] over ", call->group->name(),
        ": its members' tensors are on ", device, " and on ", device_of(*call),
        "; ranks as threads share one device. For several, start ranks as processes (tessera launch, torchrun)");
  }
}

void settle_stream(const Call& call) {
  const at::Device device = device_of(call);
  if (C10_LIKELY(device.is_cpu())) {
    return;
  }
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (streams.getStream(device) != streams.getDefaultStream(device)) {
    streams.synchronizeDevice(device.index());
  }
}

}  // namespace tessera::comm
