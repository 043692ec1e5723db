// One call of a collective by one rank: what watchers see, what messages name, what members compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/call/kinds.h"
#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

struct Program;

// A view: it and what it refers to live as long as the call.
struct Call {
  Kind kind = Kind::kBarrier;
  const Communicator* group = nullptr;
  at::TensorList inputs = {};   // what this rank gives; empty where it only receives
  at::TensorList outputs = {};  // what this rank gets; for all_reduce and broadcast the same tensor as `inputs`
  ReduceOp reduce = ReduceOp::kSum;
  int64_t peer = 0;  // position of the root, the destination or the source
  int64_t tag = 0;
  const Merge* merge = nullptr;  // what a merge asks for; `inputs` are its sums, `outputs` the closed nodes
  // Filled by CallScope from the rank's context.
  const char* op = "";               // the operator that needed it
  const Program* program = nullptr;  // null: not compared

  // Bytes of the tensors that this rank gives (receive: gets).
  int64_t bytes() const;

  // `all_reduce(sum) of Float[4, 8] over tp for op aten::mm`.
  std::string str() const;
};

// Throws if the tensors of one call do not fit each other or the group: wrong number, different dtypes or devices, not
// contiguous, an op that the dtype does not have, a root or peer outside of the group.
void verify_call(const Call& call);

// The device of the call's tensors; the CPU if it has none.
at::Device device_of(const Call& call);

// Throws if a tensor of the call is on another device than the CPU. `who`: whose tensors those are, such as "rank
// threads".
void verify_on_cpu(const Call& call, const char* who);

// The one of `groups` (an argument of split) that contains the rank of `parent`. Throws if none or several do, or if it
// names a rank outside of the parent.
const std::vector<int64_t>& own_group(const Communicator& parent, const std::vector<std::vector<int64_t>>& groups,
                                      const std::string& name);

// A Work that was done when it was made.
WorkPtr finished_work();

}  // namespace tessera::comm
