// Operators whose kernels take memory that no tensor of the program is.
#pragma once

#include <ATen/core/operator_name.h>

namespace tessera::rules {

// Whether libtorch's kernel for the CPU asks its allocator for memory of its own while it runs: packed operands of
// products in low precision, tiles of what is transposed, buffers of fused attention.
bool kernel_takes_memory(const c10::OperatorName& op);

}  // namespace tessera::rules
