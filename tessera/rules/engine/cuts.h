// Which cuts are the same cuts, although they are written differently.
#pragma once

#include <cstdint>

#include "tessera/layout/spec.h"

namespace tessera::rules {

// Whether every rank keeps what it has when `axis`, which cuts a dim now, cuts it by `other` instead (a Shard of the
// same dim; its order is not looked at).
bool same_cuts(const layout::SpecData& spec, int64_t axis, const layout::Placement& other);

// Whether every rank holds the same part under both layouts of one tensor: equal placements, or other units and orders
// with the same cuts.
bool same_layout(const layout::Spec& a, const layout::Spec& b);

// The unit in which the slowest factor of a dim is cut when the dim (`size`, faster factors `inner`) is cut into
// `parts` by `unit`. Where those cuts fall inside of the factor's indices: 1, which are other cuts.
int64_t unit_on_factor(int64_t size, int64_t inner, int64_t parts, int64_t unit);

}  // namespace tessera::rules
