// The options of all commands that read a configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/run/config.h"

namespace CLI {
class App;
}

namespace tessera::cli {

// A file, and what the command line changes in it.
struct ConfigOptions {
  std::string config;
  std::string dtype, numerics, lattice;
  std::optional<int64_t> seed, micro_batches, vocabulary;
  std::vector<std::string> sets;

  void add_to(CLI::App& command);

  // Throws ConfigError.
  train::Config read() const;
};

// The same for a job of ranks: on which mesh.
struct PlacedOptions : ConfigOptions {
  std::vector<std::string> meshes;
  std::string schedule;
  std::optional<int64_t> ranks, steps;  // `steps`: only train has an option for it

  void add_to(CLI::App& command);

  // --mesh without --ranks takes as many ranks as it has, and the other way round; without both a launcher decides.
  // The configuration is one that can run, and its vocabulary is known. Throws ConfigError.
  train::Config read() const;
};

}  // namespace tessera::cli
