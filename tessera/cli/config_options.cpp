#include "tessera/cli/config_options.h"

#include <CLI/CLI.hpp>

#include "tessera/cli/checks.h"
#include "tessera/launch/environment.h"
#include "tessera/layout/mesh.h"
#include "tessera/train/run/setup.h"

namespace tessera::cli {
namespace {

// Under a launcher the number of processes decides, unless a mesh does.
void place_launched(train::Config& config) {
  const auto place = launch::find_place();
  if (place && config.parallel.mesh.empty()) {
    train::set_field(config, c10::str("parallel.ranks=", place->size));
  }
}

}  // namespace

void ConfigOptions::add_to(CLI::App& command) {
  command.add_option("config", config, "TOML file, such as examples/llama.toml")->required();
  command.add_option("--dtype", dtype, "float32, float64 or bfloat16: train.dtype");
  command.add_option("--numerics", numerics, "exact or fast: train.numerics");
  command.add_option("--lattice", lattice, "batch=8,sequence=1,feature=8: train.lattice, of numerics exact");
  command.add_option("--seed", seed, "train.seed");
  command.add_option("--microbatches", micro_batches, "of a step: train.accumulate");
  command.add_option("--vocabulary", vocabulary,
                     "1 or 2: embedding and head are cut over the stages of pp: parallel.vocabulary");
  command.add_option("--set", sets, "section.key=value: change one field; may be repeated")->allow_extra_args(false);
}

train::Config ConfigOptions::read() const {
  auto result = train::read_config(config);
  for (const auto& set : sets) {
    train::set_field(result, set);
  }
  if (seed) {
    train::set_field(result, c10::str("train.seed=", *seed));
  }
  if (micro_batches) {
    train::set_field(result, c10::str("train.accumulate=", *micro_batches));
  }
  if (vocabulary) {
    train::set_field(result, c10::str("parallel.vocabulary=", *vocabulary));
  }
  for (const auto& [field, text] :
       {std::pair("train.dtype", &dtype), {"train.numerics", &numerics}, {"train.lattice", &lattice}}) {
    if (!text->empty()) {
      train::set_field(result, c10::str(field, "=", *text));
    }
  }
  return result;
}

void PlacedOptions::add_to(CLI::App& command) {
  ConfigOptions::add_to(command);
  command.add_option("--mesh", meshes, "dp=2,tp=2: parallel.mesh; sets the number of ranks too")->expected(1);
  command.add_option("--schedule", schedule, "of the stages of pp: gpipe, 1f1b, ...: parallel.schedule");
  command.add_option("--ranks", ranks, "parallel.ranks; without --mesh the mesh is chosen")->check(at_least(1));
}

train::Config PlacedOptions::read() const {
  auto result = ConfigOptions::read();
  if (!meshes.empty() || ranks) {
    result.parallel.mesh = meshes.empty() ? "" : layout::Mesh::parse(meshes.front()).str();
    train::set_field(result, c10::str("parallel.ranks=", ranks.value_or(0)));
  } else {
    place_launched(result);
  }
  if (!schedule.empty()) {
    train::set_field(result, c10::str("parallel.schedule=", schedule));
  }
  if (steps) {
    train::set_field(result, c10::str("train.steps=", *steps));
  }
  train::verify_run(result);
  return train::with_vocabulary(result);
}

}  // namespace tessera::cli
