// The parts of a run, made from its configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/catalogue/name_map.h"
#include "tessera/data/vocabulary.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/schedule.h"
#include "tessera/plan/plan.h"
#include "tessera/train/run/config.h"

namespace tessera::train {

// How the configuration's text becomes tokens: its tokenizer, or bytes. Throws DataError.
data::Vocabulary make_vocabulary(const Config& config);

// The configuration with `model.vocab_size` filled in if it is 0. Throws ConfigError if it is given and smaller than
// the vocabulary, or if only the writer of a .bin file can know it.
Config with_vocabulary(Config config);

// Config::verify, and that the model's sizes fit each other. Throws ConfigError; makes nothing.
void verify_run(const Config& config);

// A plain one-device module; allocates nothing inside `parallel::deferred`. Throws ConfigError if sizes contradict.
std::shared_ptr<models::LanguageModel> make_model(const Config& config);

// The configuration's model as other libraries read it from files.
struct InFiles {
  catalogue::NameMap names;  // from those of its parameters
  std::string config_json;   // how `transformers` makes it
};
InFiles in_files(const Config& config, const data::Vocabulary& vocabulary);

// The plan in the file that the configuration names, or a generated one. Throws PlanError, or ConfigError if the file's
// mesh is not the configuration's.
plan::Plan make_plan(const Config& config, const torch::nn::Module& model);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Config& config, std::vector<at::Tensor> parameters);

optim::WarmupCosine make_schedule(const Config& config);

// Largest relative error that rounding explains in the configuration's dtype: 1e-5 for float32, 1e-12 for float64,
// 3e-2 (eight of its last places) for bfloat16.
double default_tolerance(const Config& config);
double default_tolerance(at::ScalarType dtype);

}  // namespace tessera::train
