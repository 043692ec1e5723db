// A call of another process, told well enough to be compared with one's own.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/call/divergence.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/processes/packing.h"

namespace tessera::comm {

// Dtype and sizes of `tensor`.
void pack_shape(Packer& message, const at::Tensor& tensor);

// A tensor of that dtype and these sizes, without memory of its own for each element: on the CPU, or on meta for any
// other device.
at::Tensor unpack_shape(Unpacker& message);

// Everything of `call` that divergence_of reads, the ops of its program as texts.
void pack_call(Packer& message, const Call& call);

// What pack_call wrote, as the call of global rank `rank` of `group`.
class RemoteCall {
 public:
  RemoteCall(Unpacker& message, const Communicator& group, int64_t rank);
  RemoteCall(const RemoteCall&) = delete;
  RemoteCall& operator=(const RemoteCall&) = delete;

  const Call& call() const { return call_; }

 private:
  std::shared_ptr<Communicator> group_;
  std::vector<at::Tensor> inputs_, outputs_;
  std::deque<std::string> texts_;
  Program program_;
  std::optional<sums::MergePlan> plan_;
  std::optional<Merge> merge_;
  Call call_;
};

// What `own` and the call of another member of the same collective disagree about, as divergence_of says it; empty if
// they agree.
std::string divergence_from(const Call& own, const RemoteCall& other);

}  // namespace tessera::comm
