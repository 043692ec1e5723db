// What the caller of a rule wants.
#pragma once

#include <optional>
#include <vector>

#include "tessera/layout/placement.h"

namespace tessera::rules {

// What is wanted of the results, from outside of the rule.
struct Wishes {
  // Layout that output i should have if the operator can produce it (that of a forward value for its gradient, of a
  // parameter for its gradient); empty: none. A wish for a cut is followed; a wish for R never forces a merge.
  std::vector<std::optional<layout::Placements>> outputs;
  // Layout into which a Partial operand i should be merged (the forward value's); empty: none.
  std::vector<std::optional<layout::Placements>> operands;
};

}  // namespace tessera::rules
