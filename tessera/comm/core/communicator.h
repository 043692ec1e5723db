// One narrow interface for everything that ranks say to each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/window.h"
#include "tessera/layout/placement.h"

namespace tessera::comm {

using layout::ReduceOp;

struct Merge;
struct NodeSum;

// A running collective. `wait` blocks until its tensors may be read and written again; it throws what the collective
// threw. Every wait has the rank's deadline. Destroying an unfinished Work gives up its result: afterwards nothing
// touches its tensors (a backend that cannot promise it otherwise waits, without throwing).
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

// The ranks of a group, and their collectives.
//
// Every method but `rank`, `size`, `ranks` and `name` is collective over the group (send and receive: over the pair):
// all members call them in the same order with matching shapes and dtypes; a mismatch is a DivergenceError on every
// member that names both callers. Several may be issued before the first wait. After any CommError the communicators of
// the job are unusable. Tensors are plain, local and contiguous, of one dtype and device, and belong to the collective
// until `wait` returns. Tensors may be empty. One thread uses a Communicator at a time. Reductions have one fixed
// order, member 0 first; half-precision types are combined in float and rounded once, bool counts sum and max as or,
// prod and min as and, NaN wins a max or min, and avg is for floating point alone.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;  // position in the group
  virtual int64_t size() const = 0;
  virtual const std::vector<int64_t>& ranks() const = 0;  // global ranks, by position
  virtual const std::string& name() const = 0;            // for messages: the axis, `world`

  // In place.
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  // outputs[i] becomes member i's input; the shapes may differ from member to member.
  virtual WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) = 0;
  // output becomes the combination over members j of their inputs[rank()].
  virtual WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) = 0;
  // outputs[i] becomes member i's inputs[rank()].
  virtual WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) = 0;
  // `root` is a position, as are `to` and `from`.
  virtual WorkPtr broadcast(at::Tensor tensor, int64_t root) = 0;
  // Sends of one sender, receiver and tag are received in the order sent. A send does not wait for its receive; a
  // receive may be issued before the send.
  virtual WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) = 0;
  virtual WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) = 0;
  virtual void barrier() = 0;

  // Finishes sums in the order of their tree: all members' nodes become the closed nodes (exact_merge.h), on every
  // member or a part of them on each. The bits are the same on every backend, because none uses a library's sum; this
  // one, over copies, serves all that have no better way. Complete when it returns.
  virtual std::vector<NodeSum> merge(const Merge& merge);

  // Whether the other members are not there, and what they would send has no values.
  virtual bool is_imagined() const { return false; }

  // Through which members read each other's memory; null, on all members, where one of them may not read another's:
  // on several machines, of several users, where the system forbids it, in an imagined job.
  virtual std::unique_ptr<Window> open_window() { return nullptr; }

  // A new group: the one of `groups` (lists of global ranks of this group) that contains this rank.
  // Collective over the ranks of that new group only; the k-th such call of one member meets the k-th of the others.
  virtual std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) = 0;
};

}  // namespace tessera::comm
