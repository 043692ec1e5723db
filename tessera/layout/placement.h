// How one mesh axis treats a tensor: replicate it, cut one dim, hold partial results, or hold it at one place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/layout/cut.h"

namespace tessera::layout {

// How partial results combine.
enum class ReduceOp : uint8_t { kSum, kMax, kMin, kProd, kAvg };

const char* name_of(ReduceOp op);

// Whether the combination of sums is the sum of the combinations.
bool is_linear(ReduceOp op);
// Whether it does not matter which of two combinations comes first.
bool commute(ReduceOp a, ReduceOp b);

// Options of a cut.
struct ShardOptions {
  // Cuts fall on multiples of `unit` elements: heads, leaves, quantisation blocks. Not of a RaggedShard.
  int64_t unit = 1;
  // When several axes cut one dim: the position of this axis among them, slowest first. -1: in mesh order.
  int order = -1;
  // An interleaved cut: the dim is so many blocks of one size, one after the other, each of which is cut alike (fused
  // products: the rows of Q, K and V are 3). At most 255. Every axis that cuts the dim has the same.
  int64_t blocks = 1;
};

// The placement on one mesh axis. A value; 24 bytes.
//
// Printed and parsed as `R`, `S(0)`, `S(0;64)` (unit 64), `S(0;64@1)` or `S(0@1)` (second among the axes that cut dim
// 0), `S(0/3)` or `S(0/3;64)` (dim 0 is 3 blocks, each of which is cut), `S(0|3,0,5)` or `S(0|2*4,3)` (into parts of 3,
// 0 and 5 elements; of 4, 4 and 3), `S(0-1|3,0,5)` (dims 0 and 1 taken together as one, of which ranks hold 3, 0 and 5
// elements), `P` for `P(sum)`, `P(max)`, `P(min)`, `P(prod)`, `P(avg)`, `On(2)` (on coordinate 2
// of the axis and nowhere else), `On(0;3)` (on coordinate 0, as stage 3 of a pipeline).
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial, kOn };

  Kind kind = Kind::kReplicate;
  ReduceOp op = ReduceOp::kSum;  // of a Partial
  int8_t order = -1;             // of a Shard
  uint8_t blocks = 1;            // of a Shard
  int32_t dim = 0;               // of a Shard, never negative; of an On the coordinate
  int32_t stage = 0;             // of an On: which comes before which, of the places that a coordinate has
  bool spans = false;            // of a Shard: dims 0 to `dim` are taken together as one, and that is cut
  Places places = {};            // of a Shard

  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_shard(int64_t d) const { return kind == Kind::kShard && dim == d; }
  bool is_interleaved() const { return kind == Kind::kShard && blocks > 1; }
  bool is_ragged() const { return kind == Kind::kShard && places.are_given(); }
  bool is_spanning() const { return kind == Kind::kShard && spans; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool is_on() const { return kind == Kind::kOn; }
  int64_t coordinate() const { return dim; }  // of an On
  // Both cut one dim (or the same ones taken together), wherever.
  bool shares_dim(const Placement& other) const { return is_shard() && other.is_shard(dim) && spans == other.spans; }
  // Every rank of the axis holds its part of the value itself.
  bool is_settled() const { return !is_partial() && !is_on(); }
  // The ranks of the axis hold the value once in all.
  bool holds_once() const { return is_shard() || is_on(); }
  // Whether the rank at `coord` of the axis holds anything, and whether it is the first of those that hold it.
  bool holds(int64_t coord) const { return !is_on() || coord == coordinate(); }
  bool is_first(int64_t coord) const { return is_on() ? holds(coord) : is_shard() || coord == 0; }
  // Of a Shard: the places at which it cuts a run of its dim (a block of it) for the ranks of an axis.
  Cut cut(int64_t run, int64_t parts) const { return {run, parts, places}; }
  bool operator==(const Placement&) const = default;

  // The same in every process.
  uint64_t hash() const;

  std::string str() const;
  // `shard`, `interleaved shard`, `ragged shard`, `spanning shard`, `replicate`, `partial` or `on`.
  const char* kind_name() const;
};

// Every rank of the axis holds the whole tensor.
Placement Replicate();
// Cut as `torch.chunk` cuts, in multiples of the unit; a rank may hold nothing. `dim` must not be negative.
Placement Shard(int64_t dim, ShardOptions options = {});
// `dim` is `blocks` blocks of one size, each cut so: what a rank holds is its part of every block, one after the other.
Placement InterleavedShard(int64_t dim, int64_t blocks, ShardOptions options = {});
// A cut of one dim at given places: the rank at coordinate i of the axis holds `sizes[i]` elements of it, which may be
// 0 (parameters that lie end to end in one buffer, of which each rank has a run). The sizes add up to what the axis
// cuts: the dim, a block of it, or the longest run that slower axes leave; on shorter runs cuts beyond the end are the
// end. Of several leading dims, {0, 1, ...}: see `spanning`; the sizes are in elements of all of them together.
Placement RaggedShard(const std::vector<int64_t>& dims, const std::vector<int64_t>& sizes, ShardOptions options = {});
// The same cut of dims 0 to the cut's own, taken together as one dim of all their elements: for tensors of few rows,
// such as [experts, in, out]. What a rank holds is a run of that dim: a part of sizes [1, ..., run, rest]. Not
// interleaved; axes that cut one of these dims cut the same ones together. See docs/design/0023.
Placement spanning(Placement cut);
// The value is the combination over the ranks of the axis.
Placement Partial(ReduceOp op = ReduceOp::kSum);
// The rank at `coordinate` of the axis holds what all would hold with Replicate; the others hold nothing: a part of
// sizes {0}. Where a coordinate has several stages of a pipeline, `stage` says which; else it is the coordinate.
Placement On(int64_t coordinate);
Placement On(int64_t coordinate, int64_t stage);

// One placement for each axis of a mesh, in axis order.
using Placements = std::vector<Placement>;

// Where the value lies once it is merged, and once every rank holds its part of it: Replicate instead of the others.
Placements without_partial(Placements placements);
Placements settled(Placements placements);

// Replicate instead of the cuts that `is_left` says.
Placements without_cuts(Placements placements, const std::function<bool(const Placement&)>& is_left);

// Every cut of a dim is one of `dim_of` that dim instead.
Placements with_dims(Placements placements, const std::function<int64_t(int64_t)>& dim_of);

// The last of the leading dims that a cut takes together; 0 where none does.
int64_t last_spanned_dim(const Placements& placements);

// The largest dim that is cut; -1 where none is.
int64_t last_cut_dim(const Placements& placements);

bool has_partial(const Placements& placements);

// The axes that are merged, and not into parts, on the way from one to the other.
std::vector<int64_t> axes_merged_whole(const Placements& from, const Placements& to);

// `from` at the coordinates at which `to` is, on axes on which both are On.
Placements sent_to(Placements from, const Placements& to);

// How the sum over all elements lies when every rank adds up those that it holds.
Placements sum_of_parts(Placements placements);

}  // namespace tessera::layout
