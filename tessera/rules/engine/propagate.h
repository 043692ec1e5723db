// From the layouts of a call's operands to the layouts the operator should run in.
#pragma once

#include "tessera/rules/engine/propagation.h"
#include "tessera/rules/engine/rule.h"
#include "tessera/rules/engine/wishes.h"

namespace tessera::rules {

// Chooses, for every mesh axis, the factor to shard (or none) that costs the fewest bytes. Only factors that some
// operand (or wish) already shards are considered: nothing is cut, and no Replicate becomes a Partial, unless somebody
// asked. Written operands and parameters stay where they are. Throws with the accepted layouts if nothing fits (an
// in-place write whose operand would have to move).
Propagation propagate(const Call& call, const FactorMap& map, const Wishes& wishes = {});

}  // namespace tessera::rules
