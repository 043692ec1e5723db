// Tensors that lie end to end in one piece of memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace tessera::dtensor {

// What is merged by one collective lies so, up to this many bytes a rank.
inline constexpr int64_t kJoinedBytes = 32 << 20;

// A tensor of its own over some of the elements of `flat`, from number `begin` on: it counts its own writes, while all
// views of one tensor count theirs together.
inline at::Tensor flat_part(const at::Tensor& flat, int64_t begin, c10::IntArrayRef sizes) {
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + begin, sizes);
}

}  // namespace tessera::dtensor
