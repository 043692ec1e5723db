// Calls with operands that lie at one coordinate of an axis (On): where such a call runs.
#pragma once

#include <optional>
#include <vector>

#include "tessera/rules/engine/call.h"
#include "tessera/rules/engine/wishes.h"

namespace tessera::rules {

// The home of a call, axis by axis. Rules never see it: a call is taken home before them, and what they decide is put
// where the home is. A value.
//
// On an axis where an operand is On, the call runs at one coordinate alone: that of an operand that is written, else,
// in a derivative, that of the forward call, else that of a parameter that no other stage fetches, else the latest
// stage of all others: what is fetched goes forward, as values do. So the gradient of what is On is computed where the
// value was. Where no forward call says where a derivative runs, the earliest stage takes the place of the latest, as
// gradients go back, and what is fetched has no say beside other operands. None says so of a sum of what a recomputed
// body gives, nor where gradients of one tensor meet, which are of its readers on several stages: the walk of a later
// stage has ended before that of an earlier one begins. The other operands move there, and its results are On there.
// Where an operand is written that is not On, what is On becomes Replicate instead, and the call runs on all ranks.
//
// A parameter that is cut over the stages of a pipeline (layout/vocabulary.h) is read on all ranks, too: what is On a
// stage becomes Replicate. In a walk of one stage alone such a call is at a place of the vocabulary.
class Homes {
 public:
  // What the call is part of, if it is one of a derivative: a result of the forward call, where it is known, and
  // whether it adds gradients of one tensor.
  struct Derivative {
    layout::Spec forward = {};
    bool adds_gradients = false;
  };

  // `stage`: the one that runs alone, or a place of the vocabulary; negative: all. Throws if operands are written at
  // two coordinates of an axis.
  explicit Homes(const Call& call, const std::optional<Derivative>& derivative = {}, int64_t stage = -1);

  // No operand is On.
  bool empty() const { return axes_.empty(); }

  // The call and the wishes for it as rules see them: Replicate on the axes of the home. Plain operands are so already.
  void take_home(Call& call) const;
  void take_home(Wishes& wishes) const;

  // The layout that a layout inside is.
  layout::Spec outside(const layout::Spec& inside) const;

  // The layout in which a value that the call reads stays there, on its way from one layout to another: at another
  // coordinate, or, of what all stages read, everywhere.
  layout::Placements sent(const layout::Placements& from, const layout::Placements& to) const;

  // The layout in which what the call makes is handed on to a stage: rows of a vocabulary to the first one.
  layout::Spec handed_on(const layout::Spec& result) const;

  // Whether the operand is cut over stages, and the call does not run here: it is not moved.
  bool leaves(const layout::Spec& operand) const;

 private:
  struct HomeAxis {
    int64_t axis;
    layout::Placement place;  // On, or Replicate: the call runs everywhere
    int32_t part = 0;         // of the vocabulary, if it is of that
  };
  layout::Placements inside(layout::Placements placements) const;

  std::vector<HomeAxis> axes_;
};

}  // namespace tessera::rules
