// Calls with operands of which a cut takes leading dims together (layout::spanning).
//
// No rule knows such a cut. Where all of these dims go through the operator side by side, they are one factor, and the
// call is one of tensors that have them as one dim, of which the cut is a plain one. Where they do not, such operands
// are read whole.
#pragma once

#include <optional>
#include <vector>

#include "tessera/rules/engine/factor_map.h"
#include "tessera/rules/engine/propagation.h"
#include "tessera/rules/engine/wishes.h"

namespace tessera::rules::detail {

// Whether an operand is cut so, or is wished to be.
bool is_spanned(const Call& call, const Wishes& wishes);

// A call as propagate() decides about it.
struct SeenCall {
  Call call;
  FactorMap map;
  Wishes wishes;
  int64_t last_spanned = 0;         // 0: such operands are whole
  std::vector<bool> operands = {};  // those, and the outputs, that have dims 0 to `last_spanned` as one
  std::vector<bool> outputs = {};
};

// Throws where such an operand is written and would have to move.
SeenCall seen_call(const Call& call, const FactorMap& map, const Wishes& wishes);

// What was decided about the seen call, of the tensors of `call`.
Propagation seen_as(const SeenCall& seen, const Call& call, Propagation decided);

}  // namespace tessera::rules::detail
