#include "tessera/cli/cli.h"

#include <algorithm>
#include <csignal>
#include <ostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/command.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/finish.h"
#include "tessera/comm/core/stop.h"

namespace tessera::cli {
namespace {

// While it lives, the first SIGINT or SIGTERM asks the command to end when it may without loss, or if it knows of no
// such moment all ranks to stop; the next one stops them, the one after that kills.
class StopOnSignal {
 public:
  StopOnSignal() {
    for (const int signal : kSignals) {
      std::signal(signal, [](int received) { std::signal(received, comm::request_finish() ? stop : SIG_DFL); });
    }
  }
  ~StopOnSignal() {
    for (const int signal : kSignals) {
      std::signal(signal, SIG_DFL);
    }
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  static void stop(int received) {
    std::signal(received, SIG_DFL);
    comm::request_stop();
  }

  static constexpr int kSignals[] = {SIGINT, SIGTERM};
};

// A line for the command, and one for each of its verbs.
void add_flags(const std::string& before, const CLI::App& command, std::string& text) {
  const auto name = before + command.get_name();
  text += name + ":";
  for (const auto* option : command.get_options()) {
    text += " " + option->get_name();
  }
  text += "\n";
  for (const auto* verb : command.get_subcommands([](const CLI::App*) { return true; })) {
    add_flags(name + " ", *verb, text);
  }
}

// Whether the first argument is to be a command and is none; says so.
bool is_unknown_command(int argc, const char* const* argv, const CLI::App& app, std::ostream& err) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty() || first.starts_with('-')) {
    return false;
  }
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (std::find(names.begin(), names.end(), first) != names.end()) {
    return false;
  }
  err << "tessera: there is no command \"" << first << "\"; accepted: " << base::join(names, ", ")
      << base::did_you_mean(first, names) << std::endl;
  return true;
}

}  // namespace

int run(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App app("tessera: one program, any mesh, the one-device curve", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  const auto commands = add_commands(app);
  if (is_unknown_command(argc, argv, app, err)) {
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? 0 : kUsage;
  }
  const auto chosen =
      std::find_if(commands.begin(), commands.end(), [](const Command& command) { return command.app->parsed(); });
  const StopOnSignal stop;
  try {
    return chosen->run(out, err);
  } catch (const Stopped&) {
    err << "tessera: stopped" << std::endl;
    return kStopped;
  } catch (...) {
    err << "tessera: " << base::message_of(std::current_exception()) << std::endl;
    return kFailed;
  }
}

std::string flag_list() {
  CLI::App app;
  std::string text;
  for (const auto& command : add_commands(app)) {
    add_flags("", *command.app, text);
  }
  return text;
}

}  // namespace tessera::cli
