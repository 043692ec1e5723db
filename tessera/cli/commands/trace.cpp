#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"
#include "tessera/trace/parting.h"

namespace tessera::cli {

Command add_trace(CLI::App& program) {
  const auto flights = std::make_shared<std::vector<std::string>>();
  auto* app = program.add_subcommand("trace", "say where the ranks of a run that failed parted");
  app->add_option("flights", *flights,
                  "what the ranks left: flight_rank_*.json, the run's folder, or that of --log-dir")
      ->required();
  return {app, [flights](std::ostream& out, std::ostream&) {
            out << trace::parting_text(trace::read_flights(*flights));
            return 0;
          }};
}

}  // namespace tessera::cli
