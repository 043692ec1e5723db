// Views of tensors for libraries that move bytes.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::comm {

// The bytes of a contiguous tensor, flat: any dtype travels so.
at::Tensor bytes_of(const at::Tensor& tensor);
std::vector<at::Tensor> bytes_of(const std::vector<at::Tensor>& tensors);

// The one flat tensor that contiguous `tensors` make up, if they lie one after the other in one memory.
std::optional<at::Tensor> joined(const std::vector<at::Tensor>& tensors);

// Whether all have as many elements as the first.
bool is_even(const std::vector<at::Tensor>& tensors);

}  // namespace tessera::comm
