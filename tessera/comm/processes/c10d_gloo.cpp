#include "tessera/comm/processes/c10d.h"

#include <cstdlib>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using c10d::ProcessGroupGloo;

// The waits of ProcessJob have deadlines of their own; this one only bounds what nobody waits for.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 365);

std::shared_ptr<::gloo::transport::Device> make_device(const ProcessJob& job) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  const bool is_chosen = interface && *interface && !job.is_one_machine();
  return is_chosen ? ProcessGroupGloo::createDeviceForInterface(interface)
                   : ProcessGroupGloo::createDeviceForHostname(job.address());
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePtr& store, const ProcessJob& job) {
  const auto options = ProcessGroupGloo::Options::create(kLongestWait);
  options->devices.push_back(make_device(job));
  options->threads = 1;  // of the library's own collectives, which we do not use
  return c10::make_intrusive<ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store),
                                               static_cast<int>(job.rank()), static_cast<int>(job.size()), options);
}

}  // namespace tessera::comm
