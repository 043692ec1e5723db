// Starts the ranks of a job as processes of this machine, and ends them together.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::launch {

struct LocalOptions {
  int64_t ranks = 1;
  std::vector<std::string> command;  // program (looked up on PATH, or a path) and arguments, the same for all ranks
  std::string log_dir = {};          // a folder for one file a rank, rank_0.log ...; made if need be; empty: none
  // Variables that the ranks get besides this process's own and those of torchrun.
  std::vector<std::pair<std::string, std::string>> variables = {};
  // How long ranks may take to end by themselves after the first failed or a signal came, and then again after SIGTERM.
  std::chrono::milliseconds grace{5000};
};

// Runs the command on every rank, with the variables of torchrun set and the store that they speak of, and returns when
// no rank is left: 0 if all returned 0, else the code of the first that did not (128 + its number for a signal). When a
// signal came before that, it is the first code of 128 or more: ranks that waited for one that was stopped may end by
// an error of their own.
//
// Every line that a rank of LOG_RANK (default: rank 0) writes to its stdout comes out here with `[rank] ` before it;
// lines of stderr come from all ranks. Stdin of the ranks is empty. SIGINT, SIGTERM and SIGHUP are forwarded once; a
// second one kills. When one rank fails, the others have `grace` to say so and end; then they get SIGTERM, then
// SIGKILL. Each rank leads a process group, which is killed with it, and dies with this process, however that ends.
// Call it from the main thread of a process that has no ranks of its own. Throws ConfigError if the command cannot be
// started.
int run_local(const LocalOptions& options);

}  // namespace tessera::launch
