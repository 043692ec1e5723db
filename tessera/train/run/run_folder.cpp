#include "tessera/train/run/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/checkpoint/format/safetensors_file.h"
#include "tessera/train/run/saves.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.toml";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kForm = "form";  // of the parameters, in the metadata of the model's file
constexpr const char* kHuggingFace = "hugging face";
constexpr const char* kTrace = "trace";
constexpr const char* kCurves = "tb";
constexpr const char* kMetrics = "metrics.jsonl";

void write_file(const fs::path& path, const std::string& content) {
  base::AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string content_of(const std::string& path) {
  auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(DataError, text, "[train] cannot read \"", path, "\"; accepted: a readable file");
  return *std::move(text);
}

// Paths as the folder's reader finds them.
Config as_saved(Config config) {
  for (auto* path : {&config.data.file, &config.parallel.plan}) {
    *path = path->empty() ? "" : fs::absolute(*path).lexically_normal().string();
  }
  config.data.tokenizer = config.data.tokenizer.empty() ? "" : kTokenizer;
  return config;
}

// Those whose names begin so.
void remove_files(const fs::path& folder, const std::vector<std::string>& starts) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto name = entry.path().filename().string();
    if (std::any_of(starts.begin(), starts.end(), [&](const auto& start) { return name.starts_with(start); })) {
      fs::remove(entry.path(), ignored);
    }
  }
}

// Makes the folder, and keeps other runs out of it while the result lives. Where there are no locks (some network file
// systems) it keeps out nobody.
std::shared_ptr<void> lock(const std::string& folder) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::shared_ptr<void> opened(nullptr, [=](void*) { ::close(descriptor); });
  const bool is_taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  TESSERA_CHECK_AS(ConfigError, !is_taken, "[train] another run is writing into --out \"", folder,
                   "\"; accepted: another folder, or this one when that run has ended");
  return opened;
}

void verify_writable(const std::string& folder) {
  bool is_writable = fs::is_directory(folder);
  try {
    if (is_writable) {
      base::AtomicFile(fs::path(folder) / kModel).write("");
    }
  } catch (const DataError&) {
    is_writable = false;
  }
  TESSERA_CHECK_AS(ConfigError, is_writable, "[train] cannot write --out \"", folder,
                   "\"; accepted: a folder that may be written to, or made");
}

// A finished one, or the first steps of one.
bool holds_run(const fs::path& folder) {
  std::error_code is_not_there;
  const auto steps = fs::file_size(folder / kMetrics, is_not_there);
  return fs::exists(folder / kConfig) || fs::exists(folder / kModel) || (!is_not_there && steps > 0);
}

// How `transformers` makes the tokenizer. Its release 4 takes the space in front from here and not from the tokenizer's
// own file.
std::string tokenizer_config(const Config& config, const data::Vocabulary& vocabulary) {
  nlohmann::ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"model_max_length", config.data.sequence},
                                 {"add_prefix_space", vocabulary.puts_space_in_front()}};
  if (!vocabulary.end_name().empty()) {
    json["eos_token"] = vocabulary.end_name();
  }
  return json.dump(2) + "\n";
}

std::vector<checkpoint::NamedTensor> renamed(const catalogue::NameMap& names,
                                             const std::vector<checkpoint::NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) {
    by_name.emplace(name, tensor);
  }
  std::vector<checkpoint::NamedTensor> all;
  for (const auto& [name, tensor] : names.tensors(by_name)) {
    all.push_back({name, tensor});
  }
  return all;
}

std::vector<checkpoint::NamedTensor> parameters_of(const torch::nn::Module& model) {
  std::vector<checkpoint::NamedTensor> all;
  for (const auto& parameter : model.named_parameters()) {
    all.push_back({parameter.key(), parameter.value()});
  }
  return all;
}

void set_parameters(const torch::nn::Module& model, const std::vector<checkpoint::NamedTensor>& values) {
  const at::NoGradGuard no_grad;
  auto targets = model.named_parameters();
  for (const auto& [name, value] : values) {
    targets[name].copy_(value);
  }
}

// From a file in Hugging Face's form or, as it does not say so, in that of the model.
void load_parameters(const std::string& path, const Config& config, const torch::nn::Module& model) {
  const auto own = parameters_of(model);
  const auto metadata = checkpoint::SafetensorsFile(path).header().metadata;
  const auto form = metadata.find(kForm);
  if (form == metadata.end()) {
    checkpoint::load_into(path, own);
    return;
  }
  TESSERA_CHECK_AS(DataError, form->second == kHuggingFace, "[generate] \"", path, "\" has parameters in the form \"",
                   form->second, "\"; accepted: ", kHuggingFace);
  const auto names = in_files(config, {}).names;
  const auto found = renamed(names, own);
  checkpoint::load_into(path, found);
  set_parameters(model, renamed(names.inverse(), found));
}

}  // namespace

RunFolder::RunFolder(const std::string& folder, EarlierRun earlier) : lock_(lock(folder)) {
  verify_writable(folder);
  TESSERA_CHECK_AS(ConfigError, earlier != EarlierRun::kRefuse || !holds_run(folder), "[train] --out \"", folder,
                   "\" holds a run already; accepted: another folder, --replace, or --resume auto to go on with it");
  if (earlier == EarlierRun::kContinue) {
    make_way(folder);
    return;
  }
  remove_checkpoints(folder);
  remove_files(fs::path(folder) / kTrace, {"flight_rank_", "steps_"});
  remove_files(fs::path(folder) / kCurves, {"events.out.tfevents."});
}

std::string trace_folder(const std::string& folder) { return fs::path(folder) / kTrace; }
std::string profile_path(const std::string& folder, const std::string& steps) {
  return fs::path(folder) / kTrace / ("steps_" + steps + ".json");
}
std::string curves_folder(const std::string& folder) { return fs::path(folder) / kCurves; }
std::string metrics_path(const std::string& folder) { return fs::path(folder) / kMetrics; }

void cut_metrics(const std::string& path, int64_t steps) {
  std::istringstream lines(base::try_read_file(path).value_or(""));
  std::string kept, line;
  for (int64_t count = 0; count < steps && std::getline(lines, line) && !lines.eof(); ++count) {
    kept += line + "\n";
  }
  write_file(path, kept);
}

std::vector<std::pair<std::string, std::string>> files_beside_model(const Config& config,
                                                                    const data::Vocabulary& vocabulary) {
  std::vector<std::pair<std::string, std::string>> files = {{kConfig, to_toml(as_saved(config))},
                                                            {"config.json", in_files(config, vocabulary).config_json}};
  if (!config.data.tokenizer.empty()) {
    files.emplace_back(kTokenizer, content_of(config.data.tokenizer));
    files.emplace_back("tokenizer_config.json", tokenizer_config(config, vocabulary));
  }
  return files;
}

void save_run(const std::string& folder, const Config& config, const data::Vocabulary& vocabulary,
              const std::vector<checkpoint::NamedTensor>& parameters) {
  const fs::path to(folder);
  for (const auto& [name, content] : files_beside_model(config, vocabulary)) {
    write_file(to / name, content);
  }
  checkpoint::save_safetensors(to / kModel, renamed(in_files(config, {}).names, parameters),
                               {{"format", "pt"}, {kForm, kHuggingFace}});
}

TextModel make_text_model(const Config& config, const data::Vocabulary& vocabulary,
                          const std::vector<checkpoint::NamedTensor>& parameters) {
  TextModel text_model{make_model(config), vocabulary, config.data.sequence};
  set_parameters(*text_model.model, parameters);
  text_model.model->eval();
  return text_model;
}

TextModel load_run(const std::string& folder_or_file) {
  const fs::path given(folder_or_file);
  const bool is_folder = fs::is_directory(given);
  const auto folder = is_folder ? given : given.parent_path();
  TESSERA_CHECK_AS(DataError, fs::exists(given) && fs::exists(folder / kConfig), "[generate] \"", folder_or_file, "\" ",
                   !fs::exists(given) ? "is not there"
                   : is_folder        ? "has no config.toml"
                                      : "has no config.toml beside it",
                   "; accepted: the folder that `tessera train --out` wrote, or the model.safetensors in it");
  const auto config = read_config(folder / kConfig);
  verify_run(config);
  TextModel text_model{make_model(config), make_vocabulary(config), config.data.sequence};
  load_parameters(is_folder ? (given / kModel).string() : folder_or_file, config, *text_model.model);
  text_model.model->eval();
  return text_model;
}

}  // namespace tessera::train
