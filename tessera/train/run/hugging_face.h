// Models of `transformers` in runs: as configurations, and their weights.
#pragma once

#include <string>
#include <string_view>

#include "tessera/checkpoint/offline/weights.h"
#include "tessera/train/run/config.h"

namespace tessera::train {

// A configuration whose [model] and data.sequence are what a `config.json` of Llama or GPT-2 says. `source` names it in
// messages. Throws DataError that names the key and what is accepted: other kinds of models, biases or activations that
// ours do not have, scaled rotary positions.
Config config_of_hugging_face(std::string_view json, const std::string& source);

// Throws ConfigError that names the fields in which the configuration's model differs from that of the config.json of a
// checkpoint. One without a config.json passes.
void verify_same_model(const Config& config, const std::string& checkpoint);

// A checkpoint made of a folder of `transformers`, from which a run can begin.
struct Imported {
  std::string folder;
  Config config;  // with the folder's [model] and data.sequence
};

// Writes below the folder `run` as import_weights does, with config.json and the tokenizer. GPT-2's older files, whose
// names lack `transformer.`, are read too; masks and tables that the model makes itself are left out. Throws DataError.
Imported import_hugging_face(const std::string& folder, const std::string& run, checkpoint::ImportOptions options);

}  // namespace tessera::train
