// What `tessera info` prints.
#pragma once

#include <string>

namespace tessera::cli {

// Versions of tessera and libtorch, the CPU's vector instructions that libtorch and the kernels of `exact` use, cores,
// and the intra-op threads that each rank gets for 1, 2, 4 and 8 ranks.
std::string info_text();

}  // namespace tessera::cli
