// The shortest piece of a canonical sum.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// Steps of one chain of fused multiply-adds.
constexpr int64_t kChainSteps = 256;

}  // namespace tessera::kernels
