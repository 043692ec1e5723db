#include "tessera/rules/engine/propagate.h"

#include <c10/util/SmallVector.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/rules/engine/axis_choice.h"
#include "tessera/rules/engine/spanned.h"

namespace tessera::rules {

using detail::Choice;
using detail::Decision;
using detail::Frame;
using layout::Placement;
using layout::Placements;
using layout::Spec;

namespace {

int64_t product(const FactorMap& map, const DimFactors& dim) {
  int64_t result = 1;
  for (int factor : dim) {
    result *= map.factors[factor].extent;
  }
  return result;
}

void verify_tensor(const Call& call, const FactorMap& map, const TensorFactors& tensor, c10::IntArrayRef sizes) {
  bool fits = tensor.size() == sizes.size();
  for (size_t d = 0; fits && d < sizes.size(); ++d) {
    fits = tensor[d].empty() ? sizes[d] == 1 : product(map, tensor[d]) == sizes[d];
  }
  TESSERA_ASSERT(fits, "the rule of ", call.name, " gives ", map.str(), " for a tensor of sizes ", sizes);
}

void verify(const Call& call, const FactorMap& map) {
  TESSERA_ASSERT(!call.operands.empty(), call.name, " without operands has no layout to start from");
  TESSERA_ASSERT(map.operands.size() == call.operands.size() && map.outputs.size() == call.outputs.size(),
                 "the rule of ", call.name, " gives ", map.str(), " for ", call.operands.size(), " operands and ",
                 call.outputs.size(), " outputs");
  for (size_t i = 0; i < call.operands.size(); ++i) {
    TESSERA_ASSERT(call.spec(i)->mesh == call.spec(0)->mesh, "operands of ", call.name, " on two meshes");
    verify_tensor(call, map, map.operands[i], call.spec(i)->sizes);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    verify_tensor(call, map, map.outputs[i], call.outputs[i].sizes);
  }
}

// The operands of out= arguments, which the rule of the functional form does not know, have the factors of what they
// receive.
FactorMap with_written_outputs(const Call& call, FactorMap map) {
  for (size_t i = map.operands.size(); i < call.operands.size(); ++i) {
    for (size_t o = 0; o < std::min(call.outputs.size(), map.outputs.size()); ++o) {
      if (call.outputs[o].written_operand == static_cast<int>(i)) {
        map.operands.push_back(map.outputs[o]);
        break;
      }
    }
  }
  return map;
}

// What one axis accepts, for messages: `S(0) x S(0) -> S(0) or R x S(1) -> S(1) or R x R -> R`.
std::string accepted(const Frame& frame) {
  const Call& call = frame.call();
  std::vector<Choice> choices;
  for (size_t f = 0; f < frame.map().factors.size(); ++f) {
    if (frame.can_shard(static_cast<int>(f))) {
      choices.push_back({.kind = Choice::Kind::kFactor, .factor = static_cast<int>(f)});
    }
  }
  choices.push_back({});
  std::vector<std::string> lines;
  for (const Choice& choice : choices) {
    std::vector<std::string> from;
    std::vector<std::string> to;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      from.push_back(operand_target(frame, choice, i).str());
    }
    for (size_t o = 0; o < call.outputs.size(); ++o) {
      const auto target = output_target(frame, choice, o);
      to.push_back(target ? target->str() : "");
    }
    if (std::find(to.begin(), to.end(), "") == to.end()) {
      lines.push_back(base::join(from, " x ") + " -> " + base::join(to, ", "));
    }
  }
  return base::join(lines, " or ");
}

[[noreturn]] void fail(const Frame& frame, const std::string& where) {
  const Call& call = frame.call();
  std::string written;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].is_written) {
      written = c10::str("; operand ", i, " is written in place and stays where it is");
      break;
    }
  }
  TESSERA_CHECK(false, "[", short_name(call), "] no layout for ", describe(call), where, written,
                "; accepted on one axis: ", accepted(frame));
}

class Propagator {
 public:
  Propagator(const Call& call, const FactorMap& map, const Wishes& wishes)
      : call_(call),
        map_(map),
        wishes_(wishes),
        frame_(call, map),
        choices_(frame_.mesh().ndim()),
        orders_(frame_.mesh().ndim(), -1) {}

  Propagation run() {
    choose_axes();
    if (!fits_given_places()) {
      frame_.refuse_given_places();
      choose_axes();
    }
    Propagation result;
    result.bytes = bytes_;
    result.operands.reserve(call_.operands.size());
    result.outputs.reserve(call_.outputs.size());
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const bool stays = map_.metadata_only || static_cast<int>(i) == map_.like;
      result.operands.push_back(stays ? call_.spec(i) : operand_spec(i));
    }
    for (size_t o = 0; o < call_.outputs.size(); ++o) {
      result.outputs.push_back(output_spec(o));
    }
    return result;
  }

 private:
  void choose_axes() {
    std::fill(choices_.begin(), choices_.end(), Choice());
    std::fill(orders_.begin(), orders_.end(), int8_t{-1});
    partials_.clear();
    bytes_ = 0;
    for (int64_t axis = 0; axis < frame_.mesh().ndim(); ++axis) {
      if (frame_.mesh().axis(axis).size > 1) {
        choose_axis(axis);
      }
    }
    set_orders();
  }

  // Whether the runs of every tensor that are cut at given places are as long as these say.
  bool fits_given_places() const {
    const auto is_given = [](const Choice& choice) { return choice.places.are_given(); };
    if (std::none_of(choices_.begin(), choices_.end(), is_given)) {
      return true;
    }
    bool fits = true;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      fits &= layout::is_layout_of(frame_.mesh(), operand_placements(i), call_.spec(i)->sizes);
    }
    for (size_t o = 0; o < call_.outputs.size(); ++o) {
      fits &= layout::is_layout_of(frame_.mesh(), output_placements(o), call_.outputs[o].sizes);
    }
    return fits;
  }

  void choose_axis(int64_t axis) {
    if (map_.metadata_only) {
      choices_[axis] = choose_like(axis);
      return;
    }
    const std::optional<Decision> decision = detail::choose(frame_, wishes_, axis, partials_, choices_);
    if (!decision) {
      fail(frame_, c10::str(", axis ", frame_.mesh().axis(axis).name));
    }
    choices_[axis] = decision->choice;
    bytes_ += decision->bytes;
    for (size_t o = 0; o < call_.outputs.size(); ++o) {
      const auto target = output_target(frame_, decision->choice, o);
      if (target->is_partial()) {
        partials_.push_back(target->op);
      }
    }
  }

  // For operators that read shapes only: the wished cut, else that of operand 0.
  Choice choose_like(int64_t axis) const {
    const auto& first = *call_.spec(0);
    const bool is_wished = !call_.operands[0].is_written && !wishes_.outputs.empty() && wishes_.outputs[0] &&
                           (*wishes_.outputs[0])[axis].is_shard();
    const Placement& placement = is_wished ? (*wishes_.outputs[0])[axis] : first.placements[axis];
    if (!placement.is_shard()) {
      return {};
    }
    const DimFactors& dim = (is_wished ? map_.outputs.at(0) : map_.operands[0]).at(placement.dim);
    const int64_t run = product(map_, dim) / placement.blocks;
    return detail::factor_cut(frame_, dim, placement, run, frame_.mesh().axis(axis).size).value_or(Choice{});
  }

  // Axes that cut one factor must do so in one order everywhere: that of an operand which they cut already, those that
  // stay where they are first; else mesh order.
  void set_orders() {
    for (size_t axis = 0; axis < choices_.size(); ++axis) {
      const c10::SmallVector<int64_t, 8> axes = axes_that_cut_as(axis);
      if (axes.size() > 1 && axes.front() == static_cast<int64_t>(axis)) {
        set_order(choices_[axis].factor, axes);
      }
    }
  }

  // The axes whose choice is the factor that this one cuts; none if it cuts none.
  c10::SmallVector<int64_t, 8> axes_that_cut_as(size_t axis) const {
    c10::SmallVector<int64_t, 8> axes;
    for (size_t other = 0; choices_[axis].kind == Choice::Kind::kFactor && other < choices_.size(); ++other) {
      if (choices_[other].kind == Choice::Kind::kFactor && choices_[other].factor == choices_[axis].factor) {
        axes.push_back(static_cast<int64_t>(other));
      }
    }
    return axes;
  }

  void set_order(int factor, c10::IntArrayRef axes) {
    int best = -1;
    int best_rank = -1;
    std::vector<int64_t> order;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const Operand& operand = call_.operands[i];
      const int rank = operand.is_written ? 2 : operand.is_parameter ? 1 : 0;
      const int32_t dim = frame_.at_operand(i, factor).dim;
      if (dim < 0 || rank <= best_rank) {
        continue;
      }
      std::vector<int64_t> found = operand.spec->axes_of(dim);
      std::erase_if(found, [&](int64_t axis) { return std::find(axes.begin(), axes.end(), axis) == axes.end(); });
      if (found.size() == axes.size()) {
        best = static_cast<int>(i);
        best_rank = rank;
        order = std::move(found);
      }
    }
    for (size_t i = 0; i < order.size() && best >= 0; ++i) {
      orders_[order[i]] = static_cast<int8_t>(i);
    }
  }

  Placement ordered(Placement placement, size_t axis) const {
    if (placement.is_shard()) {
      placement.order = orders_[axis];
    }
    return placement;
  }

  // What may become of an operand that is written: its sums are finished.
  static Spec merged_whole(const Spec& spec, const Placements& placements) {
    Placements merged = spec->placements;
    for (int64_t axis : layout::axes_merged_whole(merged, placements)) {
      merged[axis] = layout::Replicate();
    }
    return spec.with(merged);
  }

  Placements operand_placements(size_t index) const {
    Placements placements(choices_.size());
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      placements[axis] = ordered(operand_target(frame_, choices_[axis], index), axis);
    }
    return placements;
  }

  Placements output_placements(size_t index) const {
    Placements placements(choices_.size());
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      const Placement target = output_target(frame_, choices_[axis], index).value_or(layout::Replicate());
      placements[axis] = map_.metadata_only && !target.is_shard() ? layout::Replicate() : ordered(target, axis);
    }
    return placements;
  }

  Spec operand_spec(size_t index) const {
    const Operand& operand = call_.operands[index];
    const Placements placements = operand_placements(index);
    if (placements == operand.spec->placements) {
      return operand.spec;
    }
    Spec spec = operand.spec.with(placements);
    if (same_layout(spec, operand.spec)) {
      return operand.spec;
    }
    if (operand.is_written && !same_layout(spec, merged_whole(operand.spec, placements))) {
      fail(frame_, "");
    }
    return spec;
  }

  Spec output_spec(size_t index) const {
    const Output& output = call_.outputs[index];
    Spec spec = Spec::make(frame_.mesh(), output_placements(index), output.sizes, output.strides, output.dtype,
                           output_labels(index));
    if (output.written_operand >= 0 && same_layout(spec, call_.spec(output.written_operand))) {
      return call_.spec(output.written_operand);
    }
    return spec;
  }

  layout::Labels output_labels(size_t index) const {
    const Output& output = call_.outputs[index];
    if (output.written_operand >= 0 && !call_.spec(output.written_operand)->labels.empty()) {
      return call_.spec(output.written_operand)->labels;
    }
    if (!map_.labels.empty()) {
      return map_.labels.at(index);
    }
    layout::Labels labels;
    for (size_t i = 0; i < call_.operands.size(); ++i) {
      const layout::Labels& from = call_.spec(i)->labels;
      for (size_t d = 0; d < from.size(); ++d) {
        if (!from[d].empty()) {
          join_into(labels, map_.outputs[index], map_.operands[i][d], from[d]);
        }
      }
    }
    return labels;
  }

  static void join_into(layout::Labels& labels, const TensorFactors& output, const DimFactors& dim,
                        const layout::DimLabels& from) {
    for (size_t d = 0; d < output.size() && !dim.empty(); ++d) {
      if (output[d] == dim) {
        labels.resize(output.size());
        labels[d] = labels[d].empty() ? from : layout::join_labels(labels[d], from);
      }
    }
  }

  const Call& call_;
  const FactorMap& map_;
  const Wishes& wishes_;
  Frame frame_;
  c10::SmallVector<Choice, 4> choices_;
  c10::SmallVector<int8_t, 8> orders_;
  c10::SmallVector<layout::ReduceOp, 8> partials_;
  double bytes_ = 0;
};

Propagation decide(const Call& call, const FactorMap& map, const Wishes& wishes) {
  verify(call, map);
  if (detail::is_spanned(call, wishes)) {
    const detail::SeenCall seen = detail::seen_call(call, map, wishes);
    return detail::seen_as(seen, call, Propagator(seen.call, seen.map, seen.wishes).run());
  }
  return Propagator(call, map, wishes).run();
}

}  // namespace

Propagation propagate(const Call& call, const FactorMap& map, const Wishes& wishes) {
  return map.operands.size() < call.operands.size() ? decide(call, with_written_outputs(call, map), wishes)
                                                    : decide(call, map, wishes);
}

}  // namespace tessera::rules
