#include "tessera/comm/devices/device_backends.h"

#include <cstdlib>
#include <memory>
#include <mutex>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tessera::comm {
namespace {

using c10d::ProcessGroupNCCL;

// Member 0 of a backend says in the store where the others find it, and they wait for that, holding the store's one
// connection. Two ranks that each wait for the other's message would so keep the threads that send from saying it: what
// member 0 says goes over a connection of its own.
class Rendezvous {
 public:
  explicit Rendezvous(StorePtr waits) : waits_(std::move(waits)) {}

  StorePtr store_of(int64_t member) {
    std::call_once(cloned_, [this] { says_ = waits_->clone(); });
    return member == 0 ? says_ : waits_;
  }

 private:
  const StorePtr waits_;
  std::once_flag cloned_;
  StorePtr says_;
};

}  // namespace

std::optional<DeviceBackends> make_nccl(const StorePtr& store) {
  // DeviceWatch finds what fails and what is late, and tells all ranks why; the library's own watchdog would end this
  // process first, and its monitor keep a process that ends for eight minutes once the store is gone.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
  const auto make = [rendezvous = std::make_shared<Rendezvous>(store)](
                        const std::string& key, int64_t rank, int64_t size) -> c10::intrusive_ptr<c10d::Backend> {
    const auto options = ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::hours(24 * 365);
    return c10::make_intrusive<ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl/" + key, rendezvous->store_of(rank)), static_cast<int>(rank),
        static_cast<int>(size), options);
  };
  return DeviceBackends{.device = at::kCUDA, .make = make};
}

}  // namespace tessera::comm
