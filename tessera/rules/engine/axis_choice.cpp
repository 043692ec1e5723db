#include "tessera/rules/engine/axis_choice.h"

#include <compare>

#include <c10/util/SmallVector.h>

#include "tessera/base/error.h"
#include "tessera/reshard/steps.h"

namespace tessera::rules::detail {

using layout::Placement;
using layout::Places;
using layout::ReduceOp;

int leading_factor(const FactorMap& map, c10::ArrayRef<int> dim) {
  for (int factor : dim) {
    if (map.factors[factor].extent != 1) {
      return factor;
    }
  }
  return dim.empty() ? -1 : dim.front();
}

Frame::Frame(const Call& call, const FactorMap& map)
    : call_(call),
      map_(map),
      factors_(map.factors.size()),
      can_shard_(factors_),
      leads_(factors_, true),
      most_blocks_(factors_, 1) {
  for (size_t f = 0; f < factors_; ++f) {
    can_shard_[f] = map.factors[f].can_shard;
  }
  operands_.resize(map.operands.size() * factors_);
  outputs_.resize(map.outputs.size() * factors_);
  for (size_t i = 0; i < map.operands.size(); ++i) {
    place(map.operands[i], operands_.data() + i * factors_);
  }
  for (size_t i = 0; i < map.outputs.size(); ++i) {
    place(map.outputs[i], outputs_.data() + i * factors_);
  }
}

void Frame::place(const TensorFactors& tensor, Stand* stands) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    const int lead = leading_factor(map_, tensor[d]);
    int64_t inner = 1;
    for (size_t i = tensor[d].size(); i-- > 0;) {
      const int factor = tensor[d][i];
      can_shard_[factor] &= stands[factor].dim < 0;
      leads_[factor] &= factor == lead;
      stands[factor] = {static_cast<int32_t>(d), inner, 1};
      inner *= map_.factors[factor].extent;
    }
    for (int64_t outer = 1; int factor : tensor[d]) {
      stands[factor].outer = outer;
      most_blocks_[factor] = std::max(most_blocks_[factor], outer);
      outer *= map_.factors[factor].extent;
    }
  }
}

namespace {

constexpr int64_t kMostBlocks = 255;

// Where the slowest factor of a dim is cut when the dim (`size`, faster factors `inner`) is cut into `parts` at
// `places`. Where those cuts fall inside of the factor's indices: evenly, which are other cuts; nothing of given ones.
std::optional<Places> places_on_factor(int64_t size, int64_t inner, int64_t parts, const Places& places) {
  if (inner == 0) {
    return Places();
  }
  const std::optional<Places> divided = places.divided_by(inner);
  if (divided || places.are_given()) {
    return divided;
  }
  const layout::Cut cut(size, parts, places);
  if (cut == layout::Cut(size, parts, inner) || cut.most() % inner != 0) {
    return Places();
  }
  return Places::in_units(std::max<int64_t>(cut.most() / inner, 1));
}

// The cut of a dim that cuts the factor standing in it.
Placement shard_of(const Choice& choice, const Stand& stand) {
  Placement shard = layout::Shard(stand.dim, {.blocks = std::max<int64_t>(choice.blocks * stand.outer, 1)});
  shard.places = choice.places.times(stand.inner);
  return shard;
}

}  // namespace

std::optional<Choice> factor_cut(const Frame& frame, const DimFactors& dim, const Placement& shard, int64_t run,
                                 int64_t parts) {
  if (shard.is_ragged() && !frame.takes_given_places()) {
    return std::nullopt;
  }
  const FactorMap& map = frame.map();
  int64_t left = shard.blocks;  // blocks that the factors so far do not make up
  c10::ArrayRef<int> rest(dim);
  for (; left > 1 && rest.size() > 1; rest = rest.slice(1)) {
    const int64_t extent = map.factors[rest.front()].extent;
    if (extent == 0 || left % extent != 0) {
      break;
    }
    left /= extent;
  }
  const int factor = leading_factor(map, rest);
  if (factor < 0) {
    return std::nullopt;
  }
  const Factor& cut = map.factors[factor];
  const bool may_interleave = shard.blocks > 1 || cut.may_interleave;
  if (!frame.can_shard(factor) && !(may_interleave && frame.can_interleave(factor))) {
    return std::nullopt;
  }
  const bool falls_into_blocks = left == 1 || cut.extent % (left * cut.unit) == 0;
  if (!falls_into_blocks || (left > 1 && !frame.can_interleave(factor)) ||
      left * frame.most_blocks(factor) > kMostBlocks) {
    return std::nullopt;
  }
  int64_t inner = 1;
  for (size_t i = dim.size(); dim[--i] != factor;) {
    inner *= map.factors[dim[i]].extent;
  }
  std::optional<Places> places = places_on_factor(run, inner, parts, shard.places);
  places = places ? places->on_multiples_of(cut.unit) : places;
  return places ? std::optional(Choice{Choice::Kind::kFactor, factor, *places, left}) : std::nullopt;
}

Placement operand_target(const Frame& frame, const Choice& choice, size_t operand) {
  switch (choice.kind) {
    case Choice::Kind::kReplicate: break;
    case Choice::Kind::kFactor: {
      const Stand& stand = frame.at_operand(operand, choice.factor);
      return stand.dim < 0 ? layout::Replicate() : shard_of(choice, stand);
    }
    case Choice::Kind::kPartial:
      if (operand == 0 || frame.map().partial == PartialFlow::kJoint) {
        return layout::Partial(choice.op);
      }
  }
  return layout::Replicate();
}

std::optional<Placement> output_target(const Frame& frame, const Choice& choice, size_t output) {
  switch (choice.kind) {
    case Choice::Kind::kReplicate: break;
    case Choice::Kind::kFactor: {
      const Stand& stand = frame.at_output(output, choice.factor);
      if (stand.dim >= 0) {
        return shard_of(choice, stand);
      }
      const auto& reduce = frame.map().factors[choice.factor].reduce;
      return reduce ? std::optional(layout::Partial(*reduce)) : std::nullopt;
    }
    case Choice::Kind::kPartial: return layout::Partial(choice.op);
  }
  return layout::Replicate();
}

namespace {

// Compared member by member: less is better.
struct Score {
  int forced = 0;  // parameters that would move
  int missed = 0;  // wishes for a cut that stay open
  double bytes = 0;
  int moved = 0;
  int whole = 0;  // outputs that are not cut
  auto operator<=>(const Score&) const = default;
};

class AxisChooser {
 public:
  AxisChooser(const Frame& frame, const Wishes& wishes, int64_t axis, c10::ArrayRef<ReduceOp> partials,
              c10::ArrayRef<Choice> choices)
      : frame_(frame),
        call_(frame.call()),
        wishes_(wishes),
        axis_(axis),
        parts_(frame.mesh().axis(axis).size),
        partials_(partials),
        choices_(choices) {}

  std::optional<Decision> run() {
    add_candidates();
    std::optional<Decision> best;
    Score best_score;
    for (const Choice& choice : candidates_) {
      const std::optional<Score> score = evaluate(choice);
      if (score && (!best || *score < best_score)) {
        best = Decision{choice, score->bytes};
        best_score = *score;
      }
    }
    return best;
  }

 private:
  const Placement& current(size_t operand) const { return call_.operands[operand].spec->placements[axis_]; }

  const Placement* wish(const std::vector<std::optional<layout::Placements>>& wishes, size_t index) const {
    return index < wishes.size() && wishes[index] ? &(*wishes[index])[axis_] : nullptr;
  }

  // The wish for an output: that of the caller, else the layout of `like` for the first.
  const Placement* output_wish(size_t output) const {
    const Placement* wished = wish(wishes_.outputs, output);
    const int like = frame_.map().like;
    return wished == nullptr && output == 0 && like >= 0 ? &current(like) : wished;
  }

  void add(const Choice& choice) {
    if (std::find(candidates_.begin(), candidates_.end(), choice) == candidates_.end()) {
      candidates_.push_back(choice);
    }
  }

  // The factor that `shard` cuts in a tensor of these sizes.
  void add_anchor(const TensorFactors& tensor, const Placement& shard, int64_t run) {
    if (static_cast<size_t>(shard.dim) >= tensor.size()) {
      return;
    }
    if (const auto choice = factor_cut(frame_, tensor[shard.dim], shard, run, parts_)) {
      add(*choice);
    }
  }

  // The longest run of the dim (of a block of it) that `axis_` cuts, as slower axes leave it.
  int64_t run_of(const layout::SpecData& spec, int64_t dim) const {
    int64_t run = spec.sizes[dim] / spec.placements[axis_].blocks;
    const auto cuts = [&](const Placement& placement) { return placement.is_shard(dim); };
    if (std::count_if(spec.placements.begin(), spec.placements.end(), cuts) == 1) {
      return run;
    }
    for (int64_t axis : spec.axes_of(dim)) {
      if (axis == axis_) {
        break;
      }
      run = spec.placements[axis].cut(run, spec.mesh.axis(axis).size).most();
    }
    return run;
  }

  void add_candidates() {
    const FactorMap& map = frame_.map();
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const auto& spec = *call_.operands[i].spec;
      const Placement& placement = spec.placements[axis_];
      if (placement.is_shard()) {
        add_anchor(map.operands[i], placement, run_of(spec, placement.dim));
      }
      const Placement* wished = wish(wishes_.operands, i);
      if (placement.is_partial() && wished && wished->is_shard()) {
        add_anchor(map.operands[i], *wished, spec.sizes.at(wished->dim) / wished->blocks);
      }
    }
    for (size_t o = 0; o < call_.outputs.size(); ++o) {
      const Placement* wished = output_wish(o);
      if (wished && wished->is_shard()) {
        add_anchor(map.outputs[o], *wished, call_.outputs[o].sizes.at(wished->dim) / wished->blocks);
      }
    }
    add({});
    add_partial();
  }

  void add_partial() {
    const PartialFlow flow = frame_.map().partial;
    const Placement& first = current(0);
    if (flow == PartialFlow::kMerge || !first.is_partial() ||
        (flow != PartialFlow::kAny && !layout::is_linear(first.op))) {
      return;
    }
    for (size_t i = 1; i < call_.operands.size() && flow == PartialFlow::kJoint; ++i) {
      if (current(i) != first) {
        return;
      }
    }
    add({.kind = Choice::Kind::kPartial, .op = first.op});
  }

  bool is_same(const layout::SpecData& spec, const Placement& target) const {
    const Placement& from = spec.placements[axis_];
    return from.shares_dim(target) ? layout::same_cuts(spec.mesh, spec.placements, spec.sizes, axis_, target)
                                   : from == target;
  }

  // Whether an axis before this one cuts the dim in other blocks.
  template <typename TargetOf>
  bool clashes(const Placement& target, TargetOf target_of) const {
    for (int64_t axis = 0; axis < axis_ && target.is_shard(); ++axis) {
      if (choices_[axis].kind == Choice::Kind::kFactor) {
        const std::optional<Placement> other = target_of(choices_[axis]);
        if (other && other->shares_dim(target) && other->blocks != target.blocks) {
          return true;
        }
      }
    }
    return false;
  }

  // False if the operand must not go there.
  bool add_move(size_t index, const Placement& target, Score& score) const {
    const Operand& operand = call_.operands[index];
    const layout::SpecData& spec = *operand.spec;
    if (static_cast<int>(index) == frame_.map().like) {
      return true;
    }
    if (clashes(target, [&](const Choice& other) { return operand_target(frame_, other, index); })) {
      return false;
    }
    if (is_same(spec, target)) {
      return true;
    }
    const Placement& from = spec.placements[axis_];
    if (target.is_partial() || (operand.is_written && !(from.is_partial() && target.is_replicate()))) {
      return false;
    }
    score.moved += 1;
    score.bytes += reshard::axis_bytes(spec, axis_, target);
    score.forced += operand.is_parameter && from.is_shard() ? 1 : 0;
    return true;
  }

  bool add_output(size_t index, const Choice& choice, Score& score) const {
    const std::optional<Placement> target = output_target(frame_, choice, index);
    if (!target || clashes(*target, [&](const Choice& other) { return output_target(frame_, other, index); })) {
      return false;
    }
    const Output& output = call_.outputs[index];
    if (output.written_operand >= 0 && *target != operand_target(frame_, choice, output.written_operand)) {
      return false;
    }
    if (target->is_partial() && std::any_of(partials_.begin(), partials_.end(),
                                            [&](ReduceOp op) { return !layout::commute(op, target->op); })) {
      return false;
    }
    score.whole += target->is_shard() ? 0 : 1;
    const Placement* wished = output_wish(index);
    if (wished && wished->is_shard()) {
      const int64_t size = output.sizes.at(wished->dim) / wished->blocks;
      const bool is_met = wished->shares_dim(*target) && target->blocks == wished->blocks &&
                          target->cut(size, parts_) == wished->cut(size, parts_);
      score.missed += is_met ? 0 : 1;
    }
    return true;
  }

  std::optional<Score> evaluate(const Choice& choice) const {
    Score score;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      if (!add_move(i, operand_target(frame_, choice, i), score)) {
        return std::nullopt;
      }
    }
    for (size_t o = 0; o < call_.outputs.size(); ++o) {
      if (!add_output(o, choice, score)) {
        return std::nullopt;
      }
    }
    return score;
  }

  const Frame& frame_;
  const Call& call_;
  const Wishes& wishes_;
  int64_t axis_;
  int64_t parts_;
  const c10::ArrayRef<ReduceOp> partials_;
  const c10::ArrayRef<Choice> choices_;
  c10::SmallVector<Choice, 8> candidates_;
};

}  // namespace

std::optional<Decision> choose(const Frame& frame, const Wishes& wishes, int64_t axis, c10::ArrayRef<ReduceOp> partials,
                               c10::ArrayRef<Choice> choices) {
  return AxisChooser(frame, wishes, axis, partials, choices).run();
}

}  // namespace tessera::rules::detail
