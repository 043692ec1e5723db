// The search for the cheapest chain of steps on one mesh.
#pragma once

#include <optional>
#include <vector>

#include "tessera/reshard/steps.h"

namespace tessera::reshard::detail {

// A step without its Specs. An exchange has no rule.
struct Move {
  const StepRule* rule = nullptr;
  int64_t axis = -1;
  std::vector<int64_t> axes;  // instead, if several change
  Placements after;
  double bytes = 0;
};

// The one step that leads from `from` to `to` by changing one axis, if there is one. Both in normal form.
std::optional<Move> find_one_move(const layout::SpecData& tensor, const Placements& from, const Placements& to);

// The moves of the cheapest chain; both ends in normal form and valid.
std::vector<Move> search_moves(const layout::SpecData& tensor, const Placements& from, const Placements& to);

}  // namespace tessera::reshard::detail
