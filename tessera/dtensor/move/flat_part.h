// Tensors that lie end to end in one piece of memory.
#pragma once

#include <cstdint>
#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace tessera::dtensor {

// How much of what a rank has is copied end to end for one collective.
struct JoinLimits {
  int64_t part = 0;  // bytes of a tensor that is; larger ones have one of their own
  int64_t all = 0;   // bytes of all
};

// Of many tensors of any size: small ones, whose collectives cost more than their bytes, so that little is copied.
inline constexpr JoinLimits kSmallTogether = {64 << 10, 128 << 10};
// Of a group, of which a rank has room for two (gather_group.h).
inline constexpr JoinLimits kGroupTogether = {std::numeric_limits<int64_t>::max(), 32 << 20};

// A tensor of its own over some of the elements of `flat`, from number `begin` on: it counts its own writes, while all
// views of one tensor count theirs together.
inline at::Tensor flat_part(const at::Tensor& flat, int64_t begin, c10::IntArrayRef sizes) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + begin, sizes);
}

}  // namespace tessera::dtensor
