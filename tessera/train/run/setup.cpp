#include "tessera/train/run/setup.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/models/gpt.h"
#include "tessera/models/hugging_face.h"
#include "tessera/models/llama.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/lion.h"
#include "tessera/parallel/generate_plan.h"

namespace tessera::train {
namespace {

int64_t kv_heads_of(const ModelConfig& model) { return model.kv_heads > 0 ? model.kv_heads : model.heads; }

int64_t rows_of(const Config& config) {
  return config.model.vocab_size > 0 ? config.model.vocab_size : with_vocabulary(config).model.vocab_size;
}

models::LlamaConfig llama_config(const Config& config) {
  const auto& model = config.model;
  return {
      .vocab_size = rows_of(config),
      .dim = model.dim,
      .layers = model.layers,
      .heads = model.heads,
      .kv_heads = kv_heads_of(model),
      .hidden = model.hidden > 0 ? model.hidden : 3 * model.dim,
      .max_seq = config.data.sequence,
      .rope_theta = model.rope_theta,
      .norm_eps = model.norm_eps,
      .tie_embeddings = model.tie_embeddings,
      .fused_attention = model.fused_attention || config.is_exact(),  // the same bits there
      .init_std = model.init_std,
      .dtype = config.dtype(),
  };
}

models::GptConfig gpt_config(const Config& config) {
  const auto& model = config.model;
  return {
      .vocab_size = rows_of(config),
      .dim = model.dim,
      .layers = model.layers,
      .heads = model.heads,
      .max_seq = config.data.sequence,
      .dropout = model.dropout,
      .norm_eps = model.norm_eps,
      .tie_embeddings = model.tie_embeddings,
      .fused_attention = model.fused_attention || config.is_exact(),  // the same bits there
      .init_std = model.init_std,
      .dtype = config.dtype(),
  };
}

plan::Plan read_plan(const Config& config) {
  const auto text = base::try_read_file(config.parallel.plan);
  TESSERA_CHECK_AS(ConfigError, text, "[config] cannot read parallel.plan \"", config.parallel.plan,
                   "\"; accepted: a plan file, as `tessera plan` prints it");
  auto plan = plan::Plan::from_json(*text);
  TESSERA_CHECK_AS(ConfigError, plan.mesh == config.mesh(), "[config] the plan \"", config.parallel.plan,
                   "\" is for mesh {", plan.mesh.str(), "}, but parallel.mesh is {", config.mesh().str(),
                   "}; accepted: the same mesh in both");
  if (!plan.schedule.empty()) {
    config.verify_schedule(plan.mesh, plan.schedule, plan.stages_per_rank, plan.vocabulary,
                           plan.merges_in_passes() ? plan::Deal::kByPass : plan::Deal::kByBlock);
  }
  return plan;
}

// The words between commas.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : base::split(text, ',')) {
    if (const auto trimmed = base::trim(word); !trimmed.empty()) {
      words.emplace_back(trimmed);
    }
  }
  return words;
}

}  // namespace

data::Vocabulary make_vocabulary(const Config& config) {
  const auto& path = config.data.tokenizer;
  return path.empty() ? data::Vocabulary() : data::Vocabulary(data::Tokenizer::read(path), config.data.eos);
}

Config with_vocabulary(Config config) {
  auto& size = config.model.vocab_size;
  const bool is_unknown = config.data.tokenizer.empty() && config.data.file.ends_with(".bin");
  TESSERA_CHECK_AS(
      ConfigError, size > 0 || !is_unknown, "[config] the vocabulary of \"", config.data.file,
      "\" is not known; accepted: model.vocab_size = its size, or data.tokenizer = the tokenizer.json that made it");
  const auto needed = is_unknown ? size : make_vocabulary(config).size();
  TESSERA_CHECK_AS(ConfigError, size == 0 || size >= needed, "[config] model.vocab_size ", size, " is too small for \"",
                   config.data.tokenizer, "\"; accepted: ", needed, " or more, or leave it out");
  size = std::max(size, needed);
  return config;
}

void verify_run(const Config& config) {
  config.verify();
  if (config.model.kind == "gpt") {
    gpt_config(config).verify();
  } else {
    llama_config(config).verify();
  }
}

std::shared_ptr<models::LanguageModel> make_model(const Config& config) {
  if (config.model.kind == "gpt") {
    return models::Gpt(gpt_config(config)).ptr();
  }
  return models::Llama(llama_config(config)).ptr();
}

InFiles in_files(const Config& config, const data::Vocabulary& vocabulary) {
  const auto form = [&](const auto& model) -> InFiles {
    return {models::hugging_face_names(model), models::hugging_face_config(model, vocabulary.end())};
  };
  return config.model.kind == "gpt" ? form(gpt_config(config)) : form(llama_config(config));
}

plan::Plan make_plan(const Config& config, const torch::nn::Module& model) {
  if (!config.parallel.plan.empty()) {
    return read_plan(config);
  }
  plan::PlanOptions options{
      .devices = config.ranks(),
      .sequence_parallel = config.parallel.sequence_parallel,
      .sharding = plan::parse_sharding(config.parallel.sharding),
      .precision = plan::parse_precision(config.precision.storage, config.precision.compute, config.precision.reduce),
      .schedule = config.parallel.schedule,
      .stages_per_rank = config.parallel.stages_per_rank,
      .vocabulary = config.parallel.vocabulary,
      .recompute = words_of(config.recompute.modules),
      .recompute_keep = words_of(config.recompute.keep),
      .offload = words_of(config.offload.activations),
      .heads = config.model.heads,
      .kv_heads = kv_heads_of(config.model),
      .keep_gathered = config.parallel.keep_gathered,
  };
  if (config.is_exact()) {
    options.lattice = config.train.lattice;
  }
  if (!config.parallel.mesh.empty()) {
    options.mesh = config.mesh();
  }
  return parallel::generate_plan(model, options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Config& config, std::vector<at::Tensor> parameters) {
  const auto& [name, lr, betas, eps, weight_decay, momentum] = config.optimizer;
  const auto pair = std::make_tuple(betas[0], betas[1]);
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(lr).momentum(momentum).weight_decay(weight_decay));
  }
  if (name == "lion") {
    return std::make_unique<optim::Lion>(std::move(parameters),
                                         optim::LionOptions(lr).betas(pair).weight_decay(weight_decay));
  }
  if (name == "adamw8bit") {
    return std::make_unique<optim::AdamW8bit>(
        std::move(parameters), optim::AdamW8bitOptions(lr).betas(pair).eps(eps).weight_decay(weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(lr).betas(pair).eps(eps).weight_decay(weight_decay));
}

optim::WarmupCosine make_schedule(const Config& config) {
  return {
      .peak = config.optimizer.lr,
      .floor = config.train.min_lr,
      .warmup = config.train.warmup,
      .steps = config.train.steps,
  };
}

double default_tolerance(const Config& config) { return default_tolerance(config.dtype()); }

double default_tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kBFloat16 ? 3e-2 : dtype == at::kHalf ? 4e-3 : 1e-5;
}

}  // namespace tessera::train
