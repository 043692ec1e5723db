// What a reduction over a group asks of one member, as data: which member combines which part, of what, and where it
// goes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/merge/exact_merge.h"

namespace tessera::comm {

// Up to this many bytes every member combines the whole: one exchange instead of two.
inline constexpr int64_t kSmallBytes = 64 << 10;

// One member's view of a reduction, for backends that move tensors between members: the backend brings what members
// give to a part to the member that combines it, in pieces of any length, and its results to the members that want
// them.
//
// Tensors are flat and contiguous, of one dtype; those of a part have its length. Holds the tensors' memory.
struct Reduction {
  using Tensors = std::vector<at::Tensor>;

  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> lengths = {};  // elements of the part that each member combines
  std::vector<int64_t> counts = {};   // tensors that each member gives to every part
  std::vector<Tensors> given = {};    // what the calling member gives to each part
  std::vector<Tensors> taken = {};    // where the calling member wants each part; nothing where it does not get it
  std::vector<uint64_t> shapes = {};  // of each part: what all members must agree about
  // Every member combines the whole: each part is the same, and `taken` may lie where `given` does. Otherwise only what
  // a member gives itself may lie where its part is taken, and what it gives to another part where it takes that part.
  bool is_whole = false;
  // results[k][i] = what becomes of values[.][i], those of member 0 first.
  std::function<void(const Tensors& values, const Tensors& results)> combine = {};

  int64_t size() const { return static_cast<int64_t>(lengths.size()); }
  // Whether each part goes to all members, not only to the one that combines it.
  bool is_handed_out() const;

  // How many pieces of `piece` elements the longest part has: one at least. And the elements of piece `k` of a part.
  int64_t pieces(int64_t piece) const;
  layout::Range piece_of(int64_t part, int64_t k, int64_t piece) const;
};

// In place, over `size` members.
Reduction reduction_of(const at::Tensor& tensor, ReduceOp op, int64_t size);

// inputs[i] of all members become the output of member i; `member` is the calling one.
Reduction scatter_reduction_of(const at::Tensor& output, const std::vector<at::Tensor>& inputs, ReduceOp op,
                               int64_t member);

// The merge, into the `results` of merge_results. It refers to `merge`. Whole as above; bytes are those of a ring for
// each node that a member holds.
Reduction merge_reduction_of(const Merge& merge, const std::vector<at::Tensor>& results, int64_t member);

}  // namespace tessera::comm
