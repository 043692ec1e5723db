#include "tessera/plan/plan.h"

#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"
#include "tessera/cli/config_options.h"
#include "tessera/parallel/deferred.h"
#include "tessera/train/run/setup.h"

namespace tessera::cli {

Command add_plan(CLI::App& program) {
  const auto options = std::make_shared<PlacedOptions>();
  auto* app = program.add_subcommand("plan", "print the plan for a configuration as JSON");
  options->add_to(*app);
  return {app, [options](std::ostream& out, std::ostream&) {
            const auto config = options->read();
            const auto model = parallel::deferred([&] { return train::make_model(config); });
            out << train::make_plan(config, *model).json();
            return 0;
          }};
}

}  // namespace tessera::cli
