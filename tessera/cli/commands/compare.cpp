#include "tessera/train/compare/compare.h"

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"
#include "tessera/train/compare/bit_compare.h"
#include "tessera/train/compare/program_compare.h"
#include "tessera/train/run/setup.h"

namespace tessera::cli {
namespace {

struct CompareArguments {
  ConfigOptions config;
  std::vector<std::string> arguments;
  bool as_processes = false;
  std::vector<std::string> meshes, schedules;
  int64_t steps = 20;
  double tolerance = 0;
  bool is_json = false;
};

// Options of a configuration say nothing to a program, which takes its own after `--`.
void verify_program_options(const CompareArguments& arguments) {
  const ConfigOptions& given = arguments.config;
  for (const auto& [name, is_given] : {std::pair("--dtype", !given.dtype.empty()),
                                       {"--lattice", !given.lattice.empty()},
                                       {"--seed", given.seed.has_value()},
                                       {"--microbatches", given.micro_batches.has_value()},
                                       {"--vocabulary", given.vocabulary.has_value()},
                                       {"--schedule", !arguments.schedules.empty()},
                                       {"--set", !given.sets.empty()}}) {
    TESSERA_CHECK_AS(ConfigError, !is_given, "[compare] ", name, " is for a configuration, and ", given.config,
                     " is a program; accepted: the program's own arguments after --");
  }
  TESSERA_CHECK_AS(ConfigError, given.numerics.empty() || given.numerics == "exact" || given.numerics == "fast",
                   "[compare] --numerics ", given.numerics, "; accepted: exact, fast");
}

int run_compare_program(const CompareArguments& arguments, std::ostream& out) {
  const auto& given = arguments.config;
  verify_program_options(arguments);
  train::ProgramOptions options{.command = train::command_of(given.config, arguments.arguments),
                                .steps = arguments.steps,
                                .as_processes = arguments.as_processes};
  if (!given.numerics.empty()) {
    options.is_exact = given.numerics == "exact";
  }
  auto comparison = train::compare_program(options, arguments.meshes, arguments.tolerance);
  comparison.program = given.config;
  out << (arguments.is_json ? comparison.json() + "\n" : comparison.text());
  const bool is_same = comparison.is_same();
  return is_same ? 0 : kFailed;
}

int run_compare(const CompareArguments& arguments, std::ostream& out) {
  if (train::is_program(arguments.config.config)) {
    return run_compare_program(arguments, out);
  }
  TESSERA_CHECK_AS(ConfigError, arguments.arguments.empty() && !arguments.as_processes, "[compare] ",
                   arguments.config.config,
                   " is a configuration, which takes no arguments of a program; accepted: "
                   "train.py or a program that may be executed");
  const auto base = train::with_vocabulary(arguments.config.read());
  const auto sides = train::parse_sides(base, arguments.meshes, arguments.schedules);
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
      "compare",
      "train on several layouts and compare every number (exact: every bit) with the first: a configuration, or a "
      "program of your own: tessera compare train.py --mesh 1 --mesh dp=2,tp=2 -- ITS ARGUMENTS");
  arguments->config.add_to(*app);
  app->add_option("arguments", arguments->arguments,
                  "after --: those of the program, in which {mesh} and {ranks} are the run's");
  app->add_option("--mesh", arguments->meshes,
                  "a layout, at least twice: 1, dp=2,tp=2, \"tp=2;sp;regather;accumulate=2;section.key=value\"")
      ->allow_extra_args(false);
  app->add_option("--schedule", arguments->schedules,
                  "of the stages of meshes with pp: gpipe, 1f1b, ...; each of several on each such mesh")
      ->allow_extra_args(false);
  app->add_option("--steps", arguments->steps, "steps of the run or the program, 20 if not given");
  app->add_option("--tolerance", arguments->tolerance, "largest relative error; by the dtype if not given");
  app->add_flag("--processes", arguments->as_processes, "each rank of the program a process, as by tessera launch");
  app->add_flag("--json", arguments->is_json, "print one JSON object");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_compare(*arguments, out); }};
}

}  // namespace tessera::cli
