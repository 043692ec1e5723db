#include "tessera/train/run/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/program/file_names.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigJson = "config.json";

// The keys of a config.json, each as its model needs it.
class Keys {
 public:
  Keys(std::string_view json, const std::string& source) : source_(source) {
    keys_ = nlohmann::json::parse(json, nullptr, false);
    TESSERA_CHECK_AS(DataError, keys_.is_object(), "[hugging face] \"", source,
                     "\" is no JSON object; accepted: the config.json of a model");
  }

  // What a key says; `otherwise` where it is not there or null.
  template <typename Value>
  Value get(const char* key, Value otherwise) const {
    const auto found = keys_.find(key);
    if (found == keys_.end() || found->is_null()) {
      return otherwise;
    }
    try {
      return found->get<Value>();
    } catch (const nlohmann::json::exception& error) {
      TESSERA_THROW(DataError, "[hugging face] \"", source_, "\" has ", key, " = ", found->dump(), ": ", error.what());
    }
  }

  int64_t size(const char* key) const {
    const auto value = get<int64_t>(key, 0);
    TESSERA_CHECK_AS(DataError, value > 0, "[hugging face] \"", source_, "\" lacks ", key,
                     "; accepted: a number above 0");
    return value;
  }

  // That a key, where it is there, has one of these values.
  void require(const char* key, const std::vector<nlohmann::json>& accepted) const {
    const auto found = keys_.find(key);
    const bool is_accepted = found == keys_.end() || found->is_null() ||
                             std::find(accepted.begin(), accepted.end(), *found) != accepted.end();
    TESSERA_CHECK_AS(DataError, is_accepted, "[hugging face] \"", source_, "\" has ", key, " = ", found->dump(),
                     ", which the model here does not have; accepted: ", base::join(accepted, ", "));
  }

  const std::string& source() const { return source_; }

 private:
  const std::string source_;
  nlohmann::json keys_;
};

void read_gpt2(const Keys& keys, Config& config) {
  auto& model = config.model;
  model.kind = "gpt";
  model.dim = keys.size("n_embd");
  model.layers = keys.size("n_layer");
  model.heads = keys.size("n_head");
  model.norm_eps = keys.get("layer_norm_epsilon", 1e-5);
  model.dropout = keys.get("resid_pdrop", 0.1);
  model.tie_embeddings = keys.get("tie_word_embeddings", true);
  config.data.sequence = keys.size("n_positions");
  keys.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  keys.require("n_inner", {4 * model.dim});
  keys.require("scale_attn_weights", {true});
  keys.require("scale_attn_by_inverse_layer_idx", {false});
  keys.require("attn_pdrop", {model.dropout});
  keys.require("embd_pdrop", {model.dropout});
}

void read_llama(const Keys& keys, Config& config) {
  auto& model = config.model;
  model.kind = "llama";
  model.dim = keys.size("hidden_size");
  model.layers = keys.size("num_hidden_layers");
  model.heads = keys.size("num_attention_heads");
  model.kv_heads = keys.get("num_key_value_heads", model.heads);
  model.hidden = keys.size("intermediate_size");
  model.norm_eps = keys.get("rms_norm_eps", 1e-6);
  model.rope_theta = keys.get("rope_theta", 10000.0);
  if (const auto rope = keys.get("rope_parameters", nlohmann::json::object()); rope.contains("rope_theta")) {
    model.rope_theta = rope.at("rope_theta").get<double>();
    TESSERA_CHECK_AS(DataError, rope.value("rope_type", "default") == "default", "[hugging face] \"", keys.source(),
                     "\" has rope_parameters = ", rope.dump(), "; accepted: rope_type default");
  }
  model.tie_embeddings = keys.get("tie_word_embeddings", false);
  config.data.sequence = keys.size("max_position_embeddings");
  keys.require("hidden_act", {"silu"});
  keys.require("head_dim", {model.dim / model.heads});
  keys.require("attention_bias", {false});
  keys.require("mlp_bias", {false});
  keys.require("rope_scaling", {nullptr});
}

// `section.key = value` of the [model] of a configuration, for comparison.
std::vector<std::pair<std::string, std::string>> fields_of(const Config& config) {
  const auto& model = config.model;
  const auto text = [](auto value) { return nlohmann::json(value).dump(); };
  return {{"model.kind", text(model.kind)},
          {"model.vocab_size", text(model.vocab_size)},
          {"model.dim", text(model.dim)},
          {"model.layers", text(model.layers)},
          {"model.heads", text(model.heads)},
          {"model.kv_heads", text(model.kv_heads)},
          {"model.hidden", text(model.hidden)},
          {"model.norm_eps", text(model.norm_eps)},
          {"model.rope_theta", text(model.rope_theta)},
          {"model.tie_embeddings", text(model.tie_embeddings)}};
}

// What GPT-2's files hold beside parameters, and the names of those that its first files have.
std::optional<std::string> name_in_model(const Config& config, const std::string& name) {
  const bool is_made =
      name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
  if (is_made || (config.model.tie_embeddings && name == "lm_head.weight")) {
    return std::nullopt;
  }
  const bool is_short = config.model.kind == "gpt" && !name.starts_with("transformer.") && name != "lm_head.weight";
  return is_short ? "transformer." + name : name;
}

}  // namespace

Config config_of_hugging_face(std::string_view json, const std::string& source) {
  const Keys keys(json, source);
  Config config;
  config.model.vocab_size = keys.size("vocab_size");
  const auto kind = keys.get<std::string>("model_type", "none");
  if (kind == "gpt2") {
    read_gpt2(keys, config);
  } else {
    TESSERA_CHECK_AS(DataError, kind == "llama", "[hugging face] \"", source, "\" is of model_type ", kind,
                     "; accepted: llama, gpt2");
    read_llama(keys, config);
  }
  return config;
}

void verify_same_model(const Config& config, const std::string& checkpoint) {
  const auto path = fs::path(checkpoint) / kConfigJson;
  const auto text = base::try_read_file(path);
  if (!text) {
    return;
  }
  const auto theirs = fields_of(config_of_hugging_face(*text, path));
  const auto ours = fields_of(config_of_hugging_face(in_files(config, {}).config_json, kConfigJson));
  std::vector<std::string> differences;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].second != theirs[i].second) {
      differences.push_back(ours[i].first + " = " + theirs[i].second + " (the configuration has " + ours[i].second +
                            ")");
    }
  }
  TESSERA_CHECK_AS(ConfigError, differences.empty(), "[train] the model of \"", checkpoint, "\" has ",
                   base::join(differences, ", "), "; accepted: a configuration of the same model");
}

Imported import_hugging_face(const std::string& folder, const std::string& run, checkpoint::ImportOptions options) {
  const fs::path from(folder);
  const auto path = from / kConfigJson;
  const auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(DataError, text, "[hugging face] \"", path.string(),
                   "\" cannot be read; accepted: a folder that model.save_pretrained wrote");
  const auto config = config_of_hugging_face(*text, path);
  for (const char* name : {kConfigJson, "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    if (auto content = base::try_read_file(from / name)) {
      options.files.emplace_back(name, *std::move(content));
    }
  }
  if (const auto form = checkpoint::form_of(in_files(config, {}).names); !form.empty()) {
    options.values[checkpoint::kForm] = form;
  }
  options.name = [&](const std::string& name) { return name_in_model(config, name); };
  return {import_weights(folder, std::make_shared<checkpoint::PosixStore>(), run, options), config};
}

}  // namespace tessera::train
