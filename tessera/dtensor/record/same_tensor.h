// Which of some tensors one is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// Its place among them: the same tensor, not one of the same values. Nothing if it is none of them.
inline std::optional<size_t> find_same(const std::vector<at::Tensor>& all, const at::Tensor& tensor) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const at::Tensor& each) { return each.is_same(tensor); });
  return found == all.end() ? std::nullopt : std::optional(static_cast<size_t>(found - all.begin()));
}

}  // namespace tessera::dtensor
