// A finished run in a folder: `config.toml`, `model.safetensors` and, where there is one, `tokenizer.json`.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/train/config.h"
#include "tessera/train/generate.h"

namespace tessera::train {

// Makes the folder. Throws ConfigError if that cannot be done or nothing can be written there: before a run, not after it.
void make_run_folder(const std::string& folder);

// Writes the run's files, each whole or not at all; the model comes last. `parameters` are whole and have the names of
// make_model(config). Throws DataError on a disk that fails.
void save_run(const std::string& folder, const Config& config, const std::vector<checkpoint::NamedTensor>& parameters);

// A model of these parameters, for use on one device.
TextModel make_text_model(const Config& config, const data::Vocabulary& vocabulary, const std::vector<checkpoint::NamedTensor>& parameters);

// The model of a run's folder, or of a .safetensors file that has its config.toml beside it. Throws DataError and ConfigError
// that name the file which is missing or does not fit the others.
TextModel load_run(const std::string& folder_or_file);

}  // namespace tessera::train
