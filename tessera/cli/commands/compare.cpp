#include "tessera/train/compare/compare.h"

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"
#include "tessera/train/compare/bit_compare.h"
#include "tessera/train/run/setup.h"

namespace tessera::cli {
namespace {

struct CompareArguments {
  ConfigOptions config;
  std::vector<std::string> meshes;
  int64_t steps = 20;
  double tolerance = 0;
  bool is_json = false;
};

int run_compare(const CompareArguments& arguments, std::ostream& out) {
  const auto base = train::with_vocabulary(arguments.config.read());
  std::vector<train::Side> sides;
  for (const auto& mesh : arguments.meshes) {
    sides.push_back(train::parse_side(base, mesh));
  }
  const auto print = [&](const auto& comparison) {
    out << (arguments.is_json ? comparison.json() + "\n" : comparison.text());
  };
  if (train::are_exact(sides)) {
    TESSERA_CHECK_AS(ConfigError, arguments.tolerance == 0, "[compare] --tolerance ", arguments.tolerance,
                     " with numerics exact, which has none; accepted: leave it out, or --numerics fast");
    const auto comparison = train::compare_bits(sides, arguments.steps);
    print(comparison);
    return comparison.is_same() ? 0 : kFailed;
  }
  const auto comparison = train::compare(sides, {.steps = arguments.steps, .tolerance = arguments.tolerance});
  print(comparison);
  return comparison.is_inside() ? 0 : kFailed;
}

}  // namespace

Command add_compare(CLI::App& program) {
  const auto arguments = std::make_shared<CompareArguments>();
  auto* app = program.add_subcommand(
      "compare", "train on several layouts and compare every number (exact: every bit) with the first");
  arguments->config.add_to(*app);
  app->add_option("--mesh", arguments->meshes,
                  "a layout, at least twice: 1, dp=2,tp=2, \"tp=2;sp;regather;accumulate=2;section.key=value\"")
      ->allow_extra_args(false);
  app->add_option("--steps", arguments->steps, "steps of the configuration's schedule, 20 if not given");
  app->add_option("--tolerance", arguments->tolerance, "largest relative error; by the dtype if not given");
  app->add_flag("--json", arguments->is_json, "print one JSON object");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_compare(*arguments, out); }};
}

}  // namespace tessera::cli
