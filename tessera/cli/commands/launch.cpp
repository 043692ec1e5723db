#include <algorithm>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/checks.h"
#include "tessera/cli/command.h"
#include "tessera/launch/local.h"

namespace tessera::cli {
namespace {

struct LaunchArguments {
  int64_t ranks = 0;
  std::string log_dir;
  double grace = 5;
  std::vector<std::string> command;
};

std::vector<std::string> names_of_commands(CLI::App& program) {
  std::vector<std::string> names;
  for (const auto* command : program.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

int run_launch(const LaunchArguments& arguments, CLI::App& tessera, std::ostream& err) {
  launch::LocalOptions options{.ranks = arguments.ranks, .command = arguments.command, .log_dir = arguments.log_dir};
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace * 1000));
  const auto own = names_of_commands(tessera);
  const auto& program = arguments.command.front();
  const bool is_own = std::find(own.begin(), own.end(), program) != own.end();
  if (is_own) {
    options.command.insert(options.command.begin(), "/proc/self/exe");
  } else {
    // Its lines pass through a pipe, and would come at its end.
    options.variables.emplace_back("PYTHONUNBUFFERED", "1");
  }
  try {
    return launch::run_local(options);
  } catch (const ConfigError& error) {
    err << "tessera: " << base::message_of(error) << (is_own ? "" : base::did_you_mean(program, own)) << std::endl;
    return kUsage;
  }
}

}  // namespace

Command add_launch(CLI::App& program) {
  const auto arguments = std::make_shared<LaunchArguments>();
  auto* app = program.add_subcommand(
      "launch", "start local processes, one for each rank: tessera launch -n 4 -- train FILE, or -- python train.py");
  app->add_option("-n,--ranks", arguments->ranks, "how many")->required()->check(at_least(1));
  app->add_option("--log-dir", arguments->log_dir, "a folder for one file a rank");
  app->add_option("--grace", arguments->grace, "seconds that ranks may take to end when one has failed")
      ->check(at_least(0));
  app->add_option("command", arguments->command, "after --: a command of tessera, or any program, with its arguments")
      ->required();
  return {app,
          [arguments, &program](std::ostream&, std::ostream& err) { return run_launch(*arguments, program, err); }};
}

}  // namespace tessera::cli
