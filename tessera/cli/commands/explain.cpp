#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"
#include "tessera/train/run/explain_step.h"

namespace tessera::cli {
namespace {

struct ExplainArguments {
  PlacedOptions config;
  int64_t step = 2, rank = 0;
  size_t width = 160;
  bool is_json = false;
};

int run_explain(const ExplainArguments& arguments, std::ostream& out) {
  const auto report = train::explain_step(arguments.config.read(), arguments.step, arguments.rank);
  out << (arguments.is_json ? report.json() + "\n" : report.text(arguments.width));
  return 0;
}

}  // namespace

Command add_explain(CLI::App& program) {
  const auto arguments = std::make_shared<ExplainArguments>();
  auto* app = program.add_subcommand("explain",
                                     "say what every operator of a step does: layouts, redistributions, bytes, time");
  arguments->config.add_to(*app);
  app->add_option("--step", arguments->step, "which, counted from 1; 2 if not given, as the first one also plans");
  app->add_option("--rank", arguments->rank, "of which rank, 0 if not given");
  app->add_option("--width", arguments->width, "longest line, 160 if not given");
  app->add_flag("--json", arguments->is_json, "print one JSON object");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_explain(*arguments, out); }};
}

}  // namespace tessera::cli
