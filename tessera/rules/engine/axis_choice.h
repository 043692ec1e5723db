// What to do on one mesh axis: the candidates, and which of them costs the fewest bytes.
#pragma once

#include <optional>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "tessera/rules/engine/rule.h"
#include "tessera/rules/engine/wishes.h"

namespace tessera::rules::detail {

// Where a factor stands in a tensor.
struct Stand {
  int32_t dim = -1;   // -1: nowhere
  int64_t inner = 1;  // product of the faster factors of the dim
  int64_t outer = 1;  // product of the slower ones; 1: it leads the dim
};

// What holds on every axis: which factors can be cut, and where they stand.
class Frame {
 public:
  Frame(const Call& call, const FactorMap& map);

  const Call& call() const { return call_; }
  const FactorMap& map() const { return map_; }
  // Whether a choice may cut at given places. They are right for the run that the other axes leave to an operand; where
  // the choices for those leave another, all axes choose anew without.
  bool takes_given_places() const { return takes_given_places_; }
  void refuse_given_places() { takes_given_places_ = false; }
  const layout::Mesh& mesh() const { return call_.operands.front().spec->mesh; }
  // Whether it can be cut, leading every dim in which it stands; and whether it can if a cut may be interleaved.
  bool can_shard(int factor) const { return can_shard_[factor] && leads_[factor]; }
  bool can_interleave(int factor) const { return can_shard_[factor] && !map_.keeps_runs; }
  // The most blocks that its cuts have anywhere.
  int64_t most_blocks(int factor) const { return most_blocks_[factor]; }
  const Stand& at_operand(size_t operand, int factor) const { return operands_[operand * factors_ + factor]; }
  const Stand& at_output(size_t output, int factor) const { return outputs_[output * factors_ + factor]; }

 private:
  void place(const TensorFactors& tensor, Stand* stands);

  const Call& call_;
  const FactorMap& map_;
  size_t factors_;
  bool takes_given_places_ = true;
  c10::SmallVector<bool, 16> can_shard_;
  c10::SmallVector<bool, 16> leads_;
  c10::SmallVector<int64_t, 16> most_blocks_;
  c10::SmallVector<Stand, 16> operands_;
  c10::SmallVector<Stand, 8> outputs_;
};

// The slowest factor of a dim that is longer than one, else its first; -1 if it has none.
int leading_factor(const FactorMap& map, c10::ArrayRef<int> dim);

// What one axis does.
struct Choice {
  enum class Kind : uint8_t { kReplicate, kFactor, kPartial };
  Kind kind = Kind::kReplicate;
  int factor = -1;
  layout::Places places = {};  // of the factor
  int64_t blocks = 1;          // of the factor: an interleaved cut
  layout::ReduceOp op = layout::ReduceOp::kSum;
  bool operator==(const Choice&) const = default;
};

// The cut of a factor that the cut `shard` of a dim is; nothing if the operator cannot take that. `run` is the longest
// run that slower axes leave of the dim (of each block of it), `parts` the size of the axis.
std::optional<Choice> factor_cut(const Frame& frame, const DimFactors& dim, const layout::Placement& shard, int64_t run,
                                 int64_t parts);

// Where the operand (output) is on the axis under a choice; of an output, nothing if the operator cannot give it.
layout::Placement operand_target(const Frame& frame, const Choice& choice, size_t operand);
std::optional<layout::Placement> output_target(const Frame& frame, const Choice& choice, size_t output);

struct Decision {
  Choice choice;
  double bytes = 0;
};

// The best choice for `axis`, or nothing if none is allowed. `partials` are the kinds of Partial that other axes gave
// the outputs: a choice that does not commute with them is not allowed. `choices` holds those of the axes before this
// one: one that would cut a dim in other blocks than they do is not allowed either.
std::optional<Decision> choose(const Frame& frame, const Wishes& wishes, int64_t axis,
                               c10::ArrayRef<layout::ReduceOp> partials, c10::ArrayRef<Choice> choices);

}  // namespace tessera::rules::detail
