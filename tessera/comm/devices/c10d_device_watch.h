// What the devices of a rank have yet to do for its collectives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/processes/process_job.h"

namespace tessera::comm {

// Ends what a device waits for in vain: its thread finds a work that failed, or that made no progress for the deadline,
// and tells the job; and when the job fails, whoever began it, it aborts every backend, so that no stream waits for a
// peer that is gone. Thread-safe. One for all groups of a rank.
class DeviceWatch {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  explicit DeviceWatch(std::shared_ptr<ProcessJob> job);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  ProcessJob& job() const { return *job_; }

  // Aborted with the job.
  void add(BackendPtr backend);

  // Keeps `work`, `what` in messages, and its tensors until it is done.
  void add(WorkPtr work, std::vector<at::Tensor> tensors, std::string what, std::chrono::milliseconds deadline);

  // `what` failed on this rank's device: tells the job, unless it has failed already or does so within a moment, for
  // the death of a peer breaks what devices do before its reason arrives.
  void fail(const std::string& what, const std::string& reason);

  // Throws what went wrong, on this rank's device or anywhere in the job. `call` is what the rank is about to do.
  void throw_if_failed(const Call& call, uint64_t group);

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    WorkPtr work;
    std::vector<at::Tensor> tensors;
    std::string what;
    std::chrono::milliseconds deadline;
    Clock::time_point begin;
  };

  void run();
  void look();
  void set_failure(const std::string& message, bool is_timeout);
  void abort_all();

  const std::shared_ptr<ProcessJob> job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<BackendPtr> backends_;
  std::vector<Entry> entries_;
  Clock::time_point progress_;  // when a work was last done
  std::string failure_;         // of this rank's device; empty: none
  bool is_timeout_ = false, is_aborted_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
