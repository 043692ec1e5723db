// Tensors on devices between processes: the collectives of a c10d backend without tags (NCCL), beside one with tags
// (Gloo).
#pragma once

#include <memory>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/devices/device_backends.h"
#include "tessera/comm/processes/process_job.h"

namespace tessera::comm {

// The world of `cpu`, which is that of join_c10d over `job`, for tensors on `backends.device` as well: each call goes
// where its tensors lie. Groups split from it make their backend with their first tensor on the device.
//
// What concerns all members stays on the CPU: before its tensors move, members agree on a call by a message of one byte
// to the next one (all_to_all: to each), tagged as those of join_c10d and of the same count of rounds. So a divergence,
// an error, a death or a deadline is told as between CPU tensors, and the backend only ever sees matching calls. What
// fails on the device later (DeviceWatch) is thrown by `wait` or by the next call, with the rank, the call, its op and
// its axis.
//
// The backend is used for what it does as this interface promises, but for the order of a sum of float, double or
// complex values, which is its own; `merge` never uses it. The rest is composed of copies and of adds in order on the
// device, and noted in the ledger (trace::Ledger::compositions):
//
//   all_reduce      of half precision (the library rounds at every hop), of maxima and minima of floating point (it
//   loses NaN),
//                   and of types that it lacks: all_gather up to 64 KiB, above all_to_all of parts and all_gather of
//                   their results
//   reduce_scatter  of the same, and of uneven lists: all_to_all
//   all_gather      of uneven lists: all_to_all
//   merge           all_gather or all_to_all (merge_by_copies)
//   send, receive   a copy over a backend for each direction of each pair, announced over the CPU (DeviceMessages)
//   barrier         over the CPU
//
// Collectives are complete when `wait` returns, for the stream that is current then. A composed all_reduce above 64 KiB
// makes the stream that is current when it is issued wait for its first half: issue it on a stream of its own to hide
// it.
std::shared_ptr<Communicator> join_devices(std::shared_ptr<ProcessJob> job, std::shared_ptr<Communicator> cpu,
                                           DeviceBackends backends);

}  // namespace tessera::comm
