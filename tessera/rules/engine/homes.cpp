#include "tessera/rules/engine/homes.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/axis_role.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::rules {

using layout::Placement;
using layout::Placements;

namespace {

// Who says where a call runs: the highest of these.
enum class Say : uint8_t { kFetched, kOperand, kParameter, kForward, kWritten };

Say say_of(const Operand& operand, bool is_derivative) {
  if (operand.is_fetched && !operand.is_written) {
    return is_derivative ? Say::kFetched : Say::kOperand;
  }
  return operand.is_written ? Say::kWritten : operand.is_parameter ? Say::kParameter : Say::kOperand;
}

struct Home {
  Placement place = {};  // no On: nobody has said it
  Say say = Say::kFetched;

  bool gives_way_to(const Placement& other, Say of_other, bool is_derivative) const {
    const bool is_farther = is_derivative ? other.stage < place.stage : other.stage > place.stage;
    return !place.is_on() || of_other > say || (of_other == say && is_farther);
  }
};

// Where the call runs on an axis on which some operand is On: there, or everywhere (Replicate).
Placement home_of(const Call& call, const std::optional<Homes::Derivative>& derivative, int64_t axis) {
  Home home;
  const layout::Spec forward = derivative && !derivative->adds_gradients ? derivative->forward : layout::Spec();
  if (forward && forward->placements[axis].is_on()) {
    home = {forward->placements[axis], Say::kForward};
  }
  for (const Operand& operand : call.operands) {
    const Placement& placement = operand.spec->placements[axis];
    const Say say = say_of(operand, derivative.has_value());
    if (!placement.is_on()) {
      if (operand.is_written) {
        return layout::Replicate();
      }
      continue;
    }
    const bool clashes = say == Say::kWritten && home.say == Say::kWritten && home.place != placement;
    TESSERA_CHECK(!clashes, "[", call.name, "] writes at two places of axis ", operand.spec->mesh.axis(axis).name, ": ",
                  home.place.str(), " and ", placement.str(), ". Redistribute one of them to the other's place first.");
    if (home.gives_way_to(placement, say, derivative.has_value())) {
      home = {placement, say};
    }
  }
  return home.place;
}

bool has_on(const Call& call, int64_t axis) {
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [&](const Operand& operand) { return operand.spec->placements[axis].is_on(); });
}

bool is_written(const Call& call) {
  return std::any_of(call.operands.begin(), call.operands.end(), [](const Operand& o) { return o.is_written; });
}

// The part of a vocabulary that the call is, where what it reads is cut over the stages of the axis; 0: none.
int32_t vocabulary_part_of(const Call& call, const layout::Spec& forward, int64_t axis) {
  if (call.spec(0)->mesh.axis(axis).name != layout::name_of(layout::AxisRole::kPipeline) || is_written(call)) {
    return 0;
  }
  if (forward) {
    const Placement& made = forward->placements[axis];
    const bool is_here = std::none_of(call.operands.begin(), call.operands.end(), [&](const Operand& operand) {
      return layout::is_of_vocabulary(operand.spec->placements[axis].stage);
    });
    return (made.is_shard() || made.is_partial()) && has_on(call, axis) && is_here ? layout::kHead : 0;
  }
  const auto is_cut = [&](const Operand& operand) { return operand.spec->placements[axis].is_shard(); };
  const auto is_cut_parameter = [&](const Operand& operand) { return operand.is_parameter && is_cut(operand); };
  if (std::none_of(call.operands.begin(), call.operands.end(), is_cut_parameter)) {
    return 0;
  }
  if (has_on(call, axis)) {
    return layout::kHead;
  }
  // Rows of a parameter for the samples of a batch; what only looks at parameters is no part of the program.
  const auto is_sample = [](const Operand& o) { return !o.is_parameter && !o.spec->labels.empty(); };
  const bool is_lookup = std::any_of(call.operands.begin(), call.operands.end(), is_sample) &&
                         std::all_of(call.operands.begin(), call.operands.end(),
                                     [&](const Operand& o) { return o.is_parameter || !is_cut(o); });
  return is_lookup ? layout::kLookup : 0;
}

// Where that runs: on all ranks, or in another walk.
Placement place_of_part(const Call& call, const layout::Spec& forward, int64_t axis, int32_t part, int64_t stage) {
  if (stage < 0 || stage == part || forward) {
    return layout::Replicate();
  }
  return layout::On(part == layout::kHead ? home_of(call, {}, axis).coordinate() : 0, part);
}

// Without the cut of an axis. Given places at which others cut its dim may be those of the run that it left: these cut
// evenly.
void take_away(Placements& placements, int64_t axis) {
  const Placement left = std::exchange(placements[axis], layout::Replicate());
  for (Placement& other : placements) {
    if (left.shares_dim(other) && other.is_ragged()) {
      other.places = {};
    }
  }
}

}  // namespace

Homes::Homes(const Call& call, const std::optional<Derivative>& derivative, int64_t stage) {
  std::optional<Derivative> of = derivative;
  if (of && of->forward && of->forward->mesh != call.spec(0)->mesh) {
    of->forward = {};
  }
  const layout::Spec known = of ? of->forward : layout::Spec();
  for (int64_t axis = 0; axis < call.spec(0)->mesh.ndim(); ++axis) {
    if (const int32_t part = vocabulary_part_of(call, known, axis)) {
      axes_.push_back({axis, place_of_part(call, known, axis, part, stage), part});
    } else if (has_on(call, axis)) {
      axes_.push_back({axis, home_of(call, of, axis)});
    }
  }
}

Placements Homes::inside(Placements placements) const {
  for (const HomeAxis& home : axes_) {
    if (home.place.is_on() || placements[home.axis].is_on()) {
      take_away(placements, home.axis);
    }
  }
  return placements;
}

void Homes::take_home(Call& call) const {
  if (empty()) {
    return;
  }
  for (Operand& operand : call.operands) {
    operand.spec = operand.spec.with(inside(operand.spec->placements));
  }
}

void Homes::take_home(Wishes& wishes) const {
  if (empty()) {
    return;
  }
  for (auto* wanted : {&wishes.outputs, &wishes.operands}) {
    for (std::optional<Placements>& placements : *wanted) {
      if (placements) {
        placements = inside(*placements);
      }
    }
  }
}

layout::Spec Homes::outside(const layout::Spec& inside) const {
  if (empty()) {
    return inside;
  }
  Placements placements = inside->placements;
  for (const HomeAxis& home : axes_) {
    if (home.place.is_on()) {
      placements[home.axis] = home.place;
    }
  }
  return inside.with(placements);
}

Placements Homes::sent(const Placements& from, const Placements& to) const {
  Placements there = layout::sent_to(from, to);
  for (const HomeAxis& home : axes_) {
    const auto axis = static_cast<size_t>(home.axis);
    there[axis] = home.part != 0 && there[axis].is_on() ? to[axis] : there[axis];
  }
  return there;
}

layout::Spec Homes::handed_on(const layout::Spec& result) const {
  Placements placements = result->placements;
  for (const HomeAxis& home : axes_) {
    if (home.part == layout::kLookup) {
      placements[home.axis] = layout::On(0);
    }
  }
  return result.with(placements);
}

bool Homes::leaves(const layout::Spec& operand) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const HomeAxis& home) {
    return home.place.is_on() && layout::is_of_vocabulary(home.place.stage) &&
           operand->placements[home.axis].is_shard();
  });
}

}  // namespace tessera::rules
