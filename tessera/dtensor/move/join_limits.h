// How much of what a rank has is copied end to end for one collective.
#pragma once

#include <cstdint>
#include <limits>

namespace tessera::dtensor {

struct JoinLimits {
  int64_t part = 0;  // bytes of a tensor that is; larger ones have a collective of their own
  int64_t all = 0;   // bytes of all
};

// Of many tensors of any size: small ones, whose collectives cost more than their bytes, so that little is copied.
inline constexpr JoinLimits kSmallTogether = {64 << 10, 128 << 10};
// Of a group, of which a rank has room for two (state/gather_group.h).
inline constexpr JoinLimits kGroupTogether = {std::numeric_limits<int64_t>::max(), 32 << 20};

}  // namespace tessera::dtensor
