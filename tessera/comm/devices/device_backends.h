// Backends of c10d that move tensors on devices.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/processes/process_job.h"

namespace tessera::comm {

// Where the groups of a job get the backends that move tensors on `device`. Those of a backend need no tags and may
// wait for each other on the device alone; its Work::wait makes the current stream wait.
struct DeviceBackends {
  at::DeviceType device = at::kCUDA;
  // The backend of a group, made by all its members at once. No other group of the job has `key`.
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& key, int64_t rank, int64_t size)> make;
  // The one over all ranks, if there is one already; else it is made like the others.
  c10::intrusive_ptr<c10d::Backend> world = {};
};

// NCCL between GPUs, its rendezvous in `store`; nothing where tessera was built without it. A failure of NCCL is left
// to the job to report: its own watchdog no longer ends the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING says so.
std::optional<DeviceBackends> make_nccl(const StorePtr& store);

}  // namespace tessera::comm
