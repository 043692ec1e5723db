// How one mesh axis treats a tensor: replicate it, cut one dim, or hold partial results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::layout {

// How partial results combine.
enum class ReduceOp : uint8_t { kSum, kMax, kMin, kProd, kAvg };

// Options of a cut.
struct ShardOptions {
  // Cuts fall on multiples of `unit` elements: heads, leaves, quantisation blocks.
  int64_t unit = 1;
  // When several axes cut one dim: the position of this axis among them, slowest first. -1: in mesh order.
  int order = -1;
  // An interleaved cut: the dim is so many blocks of one size, one after the other, each of which is cut alike (fused
  // products: the rows of Q, K and V are 3). At most 255. Every axis that cuts the dim has the same.
  int64_t blocks = 1;
};

// The placement on one mesh axis. A value; 16 bytes.
//
// Printed and parsed as `R`, `S(0)`, `S(0;64)` (unit 64), `S(0;64@1)` or `S(0@1)` (second among the axes that cut dim
// 0), `S(0/3)` or `S(0/3;64)` (dim 0 is 3 blocks, each of which is cut), `P` for `P(sum)`, `P(max)`, `P(min)`,
// `P(prod)`, `P(avg)`.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  Kind kind = Kind::kReplicate;
  ReduceOp op = ReduceOp::kSum;  // of a Partial
  int8_t order = -1;             // of a Shard
  uint8_t blocks = 1;            // of a Shard
  int32_t dim = 0;               // of a Shard, never negative
  int64_t unit = 1;              // of a Shard

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_shard(int64_t d) const { return kind == Kind::kShard && dim == d; }
  bool is_interleaved() const { return kind == Kind::kShard && blocks > 1; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool operator==(const Placement&) const = default;

  // The same in every process.
  uint64_t hash() const;

  std::string str() const;
};

// Every rank of the axis holds the whole tensor.
Placement Replicate();
// Cut as `torch.chunk` cuts, in multiples of the unit; a rank may hold nothing. `dim` must not be negative.
Placement Shard(int64_t dim, ShardOptions options = {});
// `dim` is `blocks` blocks of one size, each cut so: what a rank holds is its part of every block, one after the other.
Placement InterleavedShard(int64_t dim, int64_t blocks, ShardOptions options = {});
// The value is the combination over the ranks of the axis.
Placement Partial(ReduceOp op = ReduceOp::kSum);

// One placement for each axis of a mesh, in axis order.
using Placements = std::vector<Placement>;

const char* name_of(ReduceOp op);

// A contiguous run [begin, end) of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `parts` when [0, size) is cut as torch.chunk cuts, on multiples of `unit`:
// ceil(ceil(size / unit) / parts) units each, the last parts short or empty (empty parts are [size, size)).
Range cut(int64_t size, int64_t parts, int64_t index, int64_t unit = 1);

// Replicate where there is a Partial: how a tensor lies once it is merged.
Placements without_partial(Placements placements);

}  // namespace tessera::layout
