// The program `tessera`: subcommands train, compare, plan, explain, launch, generate, ckpt, trace, info.
#pragma once

#include <iosfwd>
#include <string>

namespace tessera::cli {

// Runs the command line. Results go to `out`, errors to `err` as one paragraph. Returns the exit code: 0; 1 for a
// failed run, a proof that does not hold, a comparison outside of its tolerance or (exact) of other bits; 2 for a
// command line that cannot be meant; 130 when SIGINT or SIGTERM stopped it (a second signal kills). launch returns the
// code of the first rank that failed (run_local), and 2 if the ranks cannot be started.
int run(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

// Every subcommand with its options, one line each: what a test freezes.
std::string flag_list();

}  // namespace tessera::cli
