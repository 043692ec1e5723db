#include <ostream>
#include <thread>

#include <ATen/Version.h>
#include <CLI/CLI.hpp>
#include <torch/version.h>

#include "tessera/cli/command.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/kernels/base/isa.h"

namespace tessera::cli {
namespace {

// Versions of tessera and libtorch, the CPU's vector instructions that libtorch and the kernels of `exact` use, cores,
// and the intra-op threads that each rank gets for 1, 2, 4 and 8 ranks.
int run(std::ostream& out) {
  out << "tessera         " << TESSERA_VERSION << "\n"
      << "libtorch        " << TORCH_VERSION << "\n"
      << "cpu capability  " << at::get_cpu_capability() << "\n"
      << "exact kernels   " << kernels::name_of(kernels::current_isa()) << "\n"
      << "cores           " << std::thread::hardware_concurrency() << "\n"
      << "intra-op threads per rank\n";
  for (const int64_t ranks : {1, 2, 4, 8}) {
    out << "  " << ranks << (ranks == 1 ? " rank   " : " ranks  ") << comm::threads_per_rank(ranks) << "\n";
  }
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  auto* app = program.add_subcommand("info", "print versions, cores and threads");
  return {app, [](std::ostream& out, std::ostream&) { return run(out); }};
}

}  // namespace tessera::cli
