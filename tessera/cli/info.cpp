#include "tessera/cli/info.h"

#include <sstream>
#include <thread>

#include <ATen/Version.h>
#include <torch/version.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/kernels/base/isa.h"

namespace tessera::cli {

std::string info_text() {
  std::ostringstream out;
  out << "tessera         " << TESSERA_VERSION << "\n"
      << "libtorch        " << TORCH_VERSION << "\n"
      << "cpu capability  " << at::get_cpu_capability() << "\n"
      << "exact kernels   " << kernels::name_of(kernels::current_isa()) << "\n"
      << "cores           " << std::thread::hardware_concurrency() << "\n"
      << "intra-op threads per rank\n";
  for (const int64_t ranks : {1, 2, 4, 8}) {
    out << "  " << ranks << (ranks == 1 ? " rank   " : " ranks  ") << comm::threads_per_rank(ranks) << "\n";
  }
  return out.str();
}

}  // namespace tessera::cli
