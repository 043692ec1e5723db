// A c10d backend with the semantics of NCCL between rank threads, for devices that are not at hand.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/devices/c10d_device.h"

namespace tessera::comm {

// What the stand-ins of one job share: their "device", which is one thread.
//
// Like NCCL: there are no tags; the k-th calls of all members of a group are one collective, which runs some time after
// the last came, on the thread of the hub, in order within the group; they must be of one kind, dtype and size, or
// everybody's fails
// (`mismatches` counts them); a send is done when its receive is; a library sum has another order (the last member
// first), max and min lose NaN, bool and 16-bit integers are refused. Tensors are read and written when the collective
// runs.
class StandInHub {
 public:
  explicit StandInHub(at::DeviceType device = at::kCPU, uint64_t seed = 1);
  ~StandInHub();

  // For join_devices.
  DeviceBackends backends();

  // The `number`-th call from now of any group fails on the device, or never runs.
  void fail_later(int64_t number, std::string message);
  void hang_later(int64_t number);
  // The next call of the member `rank` of any group is refused at once.
  void refuse(int64_t rank, std::string message);

  int64_t calls() const;       // collectives and messages that ran
  int64_t mismatches() const;  // that could not

  struct Group;
  struct Operation;

 private:
  friend class StandIn;

  std::shared_ptr<Group> open(const std::string& key, int64_t size);
  c10::intrusive_ptr<c10d::Work> post(Group& group, int64_t rank, Operation operation);
  void abort(Group& group);
  void run();
  void run_next(std::unique_lock<std::mutex>& lock);

  const at::DeviceType device_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::optional<int64_t> fails_in_, hangs_in_, refuses_;
  std::string failure_;
  int64_t calls_ = 0, mismatches_ = 0;
  bool ends_ = false;
  std::thread device_thread_;
};

}  // namespace tessera::comm
