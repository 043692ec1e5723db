// Tagged messages between the members of a group of processes.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/processes/process_job.h"

namespace tessera::comm {

// A hash of what two members must agree about before their messages of a call may meet, but for the tensors.
uint64_t fingerprint_of(const Round& round);

// One member's end of a group: what its collectives are made of. A message meets the one of the same pair, hash, dtype
// and sizes; those that agree in all of it, in the order posted. Its tensor stays with the caller until the work is
// waited for.
class C10dMessages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  C10dMessages(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> ranks);

  ProcessJob& job() const { return *job_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t member() const { return member_; }

  // Those of the members `ranks`, which the calling rank is one of.
  C10dMessages among(std::vector<int64_t> ranks) const { return {job_, backend_, std::move(ranks)}; }

  // `to` and `from` are positions. An empty tensor travels as a byte.
  WorkPtr send(int64_t to, const at::Tensor& tensor, uint64_t hash) const;
  WorkPtr receive(int64_t from, const at::Tensor& tensor, uint64_t hash) const;

 private:
  std::shared_ptr<ProcessJob> job_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int64_t> ranks_;
  int64_t member_;
};

}  // namespace tessera::comm
