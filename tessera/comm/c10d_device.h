// Tensors on devices between processes: the collectives of a c10d backend without tags (NCCL), beside one with tags (Gloo).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/communicator.h"
#include "tessera/comm/process_job.h"

namespace tessera::comm {

// Where the groups of a job get the backends that move tensors on `device`. Those of a backend need no tags and may wait for each
// other on the device alone; its Work::wait makes the current stream wait.
struct DeviceBackends {
  at::DeviceType device = at::kCUDA;
  // The backend of a group, made by all its members at once. No other group of the job has `key`.
  std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& key, int64_t rank, int64_t size)> make;
  // The one over all ranks, if there is one already; else it is made like the others.
  c10::intrusive_ptr<c10d::Backend> world = {};
};

// The world of `cpu`, which is that of join_c10d over `job`, for tensors on `backends.device` as well: each call goes where its tensors lie.
// Groups split from it make their backend with their first tensor on the device.
//
// What concerns all members stays on the CPU: before its tensors move, members agree on a call by a message of one byte to the
// next one (all_to_all: to each), tagged as those of join_c10d and of the same count of rounds. So a divergence, an error, a death
// or a deadline is told as between CPU tensors, and the backend only ever sees matching calls. What fails on the device later
// (DeviceWatch) is thrown by `wait` or by the next call, with the rank, the call, its op and its axis.
//
// The backend is used for what it does as this interface promises, but for the order of a sum of float, double or complex values,
// which is its own; `merge` never uses it. The rest is composed of copies and of adds in order on the device, and noted in the
// ledger (trace::Ledger::compositions):
//
//   all_reduce      of half precision (the library rounds at every hop), of maxima and minima of floating point (it loses NaN),
//                   and of types that it lacks: all_gather up to 64 KiB, above all_to_all of parts and all_gather of their results
//   reduce_scatter  of the same, and of uneven lists: all_to_all
//   all_gather      of uneven lists: all_to_all
//   merge           all_gather or all_to_all (merge_by_copies)
//   send, receive   a copy over a backend for each direction of each pair, announced over the CPU (DeviceMessages)
//   barrier         over the CPU
//
// Collectives are complete when `wait` returns, for the stream that is current then. A composed all_reduce above 64 KiB makes the
// stream that is current when it is issued wait for its first half: issue it on a stream of its own to hide it.
std::shared_ptr<Communicator> join_devices(std::shared_ptr<ProcessJob> job, std::shared_ptr<Communicator> cpu, DeviceBackends backends);

// NCCL between GPUs, its rendezvous in `store`; nothing where tessera was built without it. A failure of NCCL is left to the job to
// report: its own watchdog no longer ends the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING says so.
std::optional<DeviceBackends> make_nccl(const StorePtr& store);

}  // namespace tessera::comm
