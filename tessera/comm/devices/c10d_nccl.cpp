#include "tessera/comm/devices/device_backends.h"

#include <cstdlib>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tessera::comm {

using c10d::ProcessGroupNCCL;

std::optional<DeviceBackends> make_nccl(const StorePtr& store) {
  // DeviceWatch finds what fails and what is late, and tells all ranks why; the library's own watchdog would end this
  // process first.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  const auto make = [store](const std::string& key, int64_t rank, int64_t size) -> c10::intrusive_ptr<c10d::Backend> {
    const auto options = ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::hours(24 * 365);
    return c10::make_intrusive<ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl/" + key, store),
                                                 static_cast<int>(rank), static_cast<int>(size), options);
  };
  return DeviceBackends{.device = at::kCUDA, .make = make};
}

}  // namespace tessera::comm
