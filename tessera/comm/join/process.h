// Makes this process one rank of a job of processes: for a body, or for the rest of its life.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/core/context.h"
#include "tessera/comm/devices/c10d_device.h"
#include "tessera/comm/processes/process_job.h"

namespace c10d {
class ProcessGroup;
}

namespace tessera::comm {

// Which rank this process is, and where the others meet it. launch::find_place reads it from a launcher's environment.
struct Place {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_size = 1;          // ranks of this job on this machine
  std::string host = "127.0.0.1";  // of the store
  int port = 0;
  bool store_is_served = false;  // by the launcher; else rank 0 serves it
  std::string attempt;           // keeps restarts of one job apart where the store outlives them
  std::string launcher;          // for messages
};

// A c10d group that the program has made by itself (torch.distributed.init_process_group, or its own code), to be a
// job's world.
struct HandedGroup {
  StorePtr store;  // reached by all ranks of the group, as torch's default store is
  int64_t rank = 0;
  int64_t size = 1;
  c10::intrusive_ptr<c10d::Backend> cpu =
      {};  // sends tagged messages between CPU tensors (Gloo, MPI); null: Gloo, connected here
  c10::intrusive_ptr<c10d::Backend> cuda = {};  // NCCL; null: made with the first CUDA tensor
  std::optional<DeviceBackends> devices = {};   // those of another device, instead of NCCL
  int64_t local_size = 0;  // ranks of this job on this machine; 0: the count of intra-op threads stays
  // A group may be joined again after it was left, under a name that is new each time and the same on all ranks.
  std::string name = {};
};

// The backends of `group`, and `store`, the one it was made with.
HandedGroup hand_in(const c10::intrusive_ptr<c10d::ProcessGroup>& group, StorePtr store);

// A process that is a rank, from join_process until it leaves: the RankContext is the calling thread's, with all that
// RankScope sets up. One thread makes, uses and destroys it, and nothing that join_process put on that thread is put
// off in between.
class JoinedProcess {
 public:
  JoinedProcess(JoinedProcess&&) noexcept;
  JoinedProcess& operator=(JoinedProcess&&) = delete;
  // Leaves, if that has not been done: as `fail` when an exception passes, else as `leave`, whose errors go to stderr.
  ~JoinedProcess();

  RankContext& context() const;

  // The rank is done: waits until all are, and ends the rank. Throws if another failed; the rank has ended then too.
  // Only once.
  void leave();

  // The rank ends by an error: wakes the others with it, and does not wait for them.
  void fail(const std::string& message) noexcept;

 private:
  friend JoinedProcess join_process(const Place& place, const ProcessOptions& options);
  friend JoinedProcess join_process(const HandedGroup& group, const ProcessOptions& options);
  class Rank;
  explicit JoinedProcess(std::unique_ptr<Rank> rank);
  std::unique_ptr<Rank> rank_;
};

// Makes this process a rank of a job of place.size processes, with a RankContext whose world is Gloo over all of them,
// and, where torch has NCCL, NCCL for CUDA tensors; everything else is as in run_ranks: hooks, intra-op threads,
// autograd on this thread.
//
// Every process of the job calls it, with the same options. While it connects, it may leave threads behind that wait
// inside the libraries: end the process soon after an error. Ignores SIGPIPE from then on.
JoinedProcess join_process(const Place& place, const ProcessOptions& options = {});

// The same over a group that is there. Only the job's own connections are made, through group.store.
JoinedProcess join_process(const HandedGroup& group, const ProcessOptions& options = {});

// Runs `body(rank)` in a job of place.size processes, on the calling thread, as join_process makes it one.
//
// When the body throws, the other ranks are woken with its error, and it is thrown here with the rank before its
// message; when another rank threw or died, RankFailed, CommTimeout or DivergenceError say which and where this one
// was. Returns when all ranks are done.
void run_process(const Place& place, const std::function<void(int64_t rank)>& body, const ProcessOptions& options = {});

}  // namespace tessera::comm
