// A subcommand of the program. Each stands in a file of its own, with its own arguments: `commands/<name>.cpp` defines
//
//   Command add_<name>(CLI::App& program);
//
// which declares its options at `program` and says what it does once they are parsed. Nothing else names it.
#pragma once

#include <functional>
#include <iosfwd>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

constexpr int kFailed = 1, kUsage = 2, kStopped = 130;  // exit codes, see cli.h

struct Command {
  CLI::App* app;  // owned by the program
  // Results go to `out`; returns the exit code. What it throws is told on `err` by the caller, and is kFailed.
  std::function<int(std::ostream& out, std::ostream& err)> run;
};

// Every command, in the order of the alphabet. They hold what `program` parses into, so they live as long.
std::vector<Command> add_commands(CLI::App& program);

}  // namespace tessera::cli
