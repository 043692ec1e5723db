// Commands that are followed by a verb: `tessera ckpt show`.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/cli/command.h"

namespace tessera::cli {

// What a command does after one of its verbs, with the arguments that all its verbs share.
template <typename Arguments>
struct Verb {
  CLI::App* app;
  int (*run)(const Arguments&, std::ostream&);
};

// The command `app`, which wants one of these verbs. `arguments` are what they parse into.
template <typename Arguments>
Command command_of(CLI::App* app, std::shared_ptr<Arguments> arguments, std::vector<Verb<Arguments>> verbs) {
  app->require_subcommand(1);
  return {app, [arguments = std::move(arguments), verbs = std::move(verbs)](std::ostream& out, std::ostream&) {
            for (const auto& verb : verbs) {
              if (verb.app->parsed()) {
                return verb.run(*arguments, out);
              }
            }
            return kUsage;
          }};
}

}  // namespace tessera::cli
