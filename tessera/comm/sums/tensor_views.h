// Views of tensors, as backends move them.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/layout/placement.h"

namespace tessera::comm {

// The bytes of a contiguous tensor, flat: any dtype travels so.
at::Tensor bytes_of(const at::Tensor& tensor);
std::vector<at::Tensor> bytes_of(const std::vector<at::Tensor>& tensors);

// Contiguous tensors as flat ones.
std::vector<at::Tensor> flat(at::TensorList tensors);

// The elements `range` of each of flat tensors.
std::vector<at::Tensor> narrow(const std::vector<at::Tensor>& tensors, const layout::Range& range);

// The one flat tensor that contiguous `tensors` make up, if they lie one after the other in one memory.
std::optional<at::Tensor> joined(const std::vector<at::Tensor>& tensors);

// Whether all have as many elements as the first.
bool is_even(const std::vector<at::Tensor>& tensors);

}  // namespace tessera::comm
