#include "tessera/train/run/estimate.h"

#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"

namespace tessera::cli {
namespace {

struct EstimateArguments {
  PlacedOptions config;
  std::vector<int64_t> ranks;
  std::optional<uint64_t> memory;
  bool is_json = false;
};

int run_estimate(const EstimateArguments& arguments, std::ostream& out) {
  const auto estimate = train::estimate(arguments.config.read(), arguments.ranks);
  const auto memory = arguments.memory ? std::optional<int64_t>(static_cast<int64_t>(*arguments.memory)) : std::nullopt;
  out << (arguments.is_json ? estimate.json(memory) + "\n" : estimate.text(memory));
  return memory && estimate.largest().peak() > *memory ? 1 : 0;
}

}  // namespace

Command add_estimate(CLI::App& program) {
  const auto arguments = std::make_shared<EstimateArguments>();
  auto* app = program.add_subcommand("estimate", "say what memory a step takes and what it sends, without the ranks");
  arguments->config.add_to(*app);
  app->add_option("--rank", arguments->ranks, "look at this one; may be repeated; corners of the mesh if not given")
      ->allow_extra_args(false);
  app->add_option("--memory", arguments->memory, "80GiB: of a rank; status 1 if the largest takes more")
      ->transform(CLI::AsSizeValue(false));
  app->add_flag("--json", arguments->is_json, "print one JSON object");
  return {app, [arguments](std::ostream& out, std::ostream&) { return run_estimate(*arguments, out); }};
}

}  // namespace tessera::cli
