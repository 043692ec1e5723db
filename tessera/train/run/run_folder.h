// A run in a folder. When it has finished: `config.toml`, and what `transformers` loads: `model.safetensors`,
// `config.json` and, where there is one, `tokenizer.json`. From the start: `metrics.jsonl`, `tb/` for TensorBoard,
// `trace/` for profiles and for what ranks leave when they fail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/train/run/config.h"
#include "tessera/train/run/generate.h"

namespace tessera::train {

// What a run does about one that its folder holds already.
enum class EarlierRun : uint8_t { kRefuse, kReplace, kContinue };

// A run's folder while the run writes into it: until the object's end no other run may, of this process or another on
// this machine.
class RunFolder {
 public:
  // Makes the folder. Of a run that is replaced it removes what is there to watch (event files, files of trace/) and
  // its checkpoints; the rest is written over. Of one that is continued it removes checkpoints that were not finished.
  // Throws ConfigError, before anything is changed, if the folder holds a run that is not to be replaced, if another
  // run writes into it, or if nothing can be written there: before a run, not after it.
  RunFolder(const std::string& folder, EarlierRun earlier);

 private:
  std::shared_ptr<void> lock_;
};

// What is in it: trace/, which is there once something is, trace/steps_3-5.json, tb/, metrics.jsonl, checkpoints/.
std::string trace_folder(const std::string& folder);
std::string profile_path(const std::string& folder, const std::string& steps);
std::string curves_folder(const std::string& folder);
std::string metrics_path(const std::string& folder);

// Leaves of metrics.jsonl the lines of the first `steps` steps, for a run that goes on from there.
void cut_metrics(const std::string& path, int64_t steps);

// The small files beside a model, by name: its configuration, and config.json and the tokenizer for `transformers`.
// Throws DataError if the tokenizer cannot be read.
std::vector<std::pair<std::string, std::string>> files_beside_model(const Config& config,
                                                                    const data::Vocabulary& vocabulary);

// Writes the run's files, each whole or not at all; the model comes last. `parameters` are whole and have the names of
// make_model(config). Throws DataError on a disk that fails.
void save_run(const std::string& folder, const Config& config, const data::Vocabulary& vocabulary,
              const std::vector<checkpoint::NamedTensor>& parameters);

// A model of these parameters, for use on one device.
TextModel make_text_model(const Config& config, const data::Vocabulary& vocabulary,
                          const std::vector<checkpoint::NamedTensor>& parameters);

// The model of a run's folder, or of a .safetensors file that has its config.toml beside it. Throws DataError and
// ConfigError that name the file which is missing or does not fit the others.
TextModel load_run(const std::string& folder_or_file);

}  // namespace tessera::train
