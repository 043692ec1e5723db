#include "tessera/models/hugging_face.h"

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

namespace tessera::models {

using catalogue::NameMap;
using catalogue::NameRule;
using Json = nlohmann::ordered_json;

namespace {

const char* name_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return "float64";
    case at::kBFloat16: return "bfloat16";
    case at::kHalf: return "float16";
    default: return "float32";
  }
}

// What every model's configuration has.
template <typename Config>
Json described(const char* architecture, const char* kind, const Config& config, std::optional<int64_t> end) {
  const Json end_token = end ? Json(*end) : Json(nullptr);
  return {{"architectures", Json::array({architecture})},
          {"model_type", kind},
          {"torch_dtype", name_of_dtype(config.dtype)},
          {"vocab_size", config.vocab_size},
          {"initializer_range", config.init_std},
          {"tie_word_embeddings", config.tie_embeddings},
          {"bos_token_id", end_token},
          {"eos_token_id", end_token}};
}

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

}  // namespace

NameMap hugging_face_names(const GptConfig& config) {
  const catalogue::Change fused = catalogue::reordered(0, {config.heads, 3, config.head_dim()}, {1, 0, 2});
  const catalogue::Change conv1d = catalogue::transposed(0, 1);
  const std::string block = "transformer.h.{layer}.";
  std::vector<NameRule> rules = {{block + "attn.c_attn.weight", block + "attn.c_attn.weight", {fused, conv1d}},
                                 {block + "attn.c_attn.bias", block + "attn.c_attn.bias", {fused}}};
  for (const char* projection : {"attn.c_proj", "mlp.c_fc", "mlp.c_proj"}) {
    rules.push_back({block + projection + ".weight", block + projection + ".weight", {conv1d}});
    rules.push_back({block + projection + ".bias", block + projection + ".bias"});
  }
  for (const char* norm : {"transformer.h.{layer}.ln_1", "transformer.h.{layer}.ln_2", "transformer.ln_f"}) {
    rules.push_back({std::string(norm) + ".weight", std::string(norm) + ".weight"});
    rules.push_back({std::string(norm) + ".bias", std::string(norm) + ".bias"});
  }
  for (const char* name : {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}) {
    rules.push_back({name, name});
  }
  return NameMap(std::move(rules));
}

NameMap hugging_face_names(const LlamaConfig&) {
  std::vector<NameRule> rules;
  for (const char* name :
       {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    const std::string whole = std::string("model.layers.{layer}.") + name + ".weight";
    rules.push_back({whole, whole});
  }
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
    rules.push_back({name, name});
  }
  return NameMap(std::move(rules));
}

std::string hugging_face_config(const GptConfig& config, std::optional<int64_t> end) {
  Json json = described("GPT2LMHeadModel", "gpt2", config, end);
  json.update({{"n_positions", config.max_seq},
               {"n_embd", config.dim},
               {"n_layer", config.layers},
               {"n_head", config.heads},
               {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", config.norm_eps},
               {"embd_pdrop", config.dropout},
               {"attn_pdrop", config.dropout},
               {"resid_pdrop", config.dropout}});
  return text_of(json);
}

std::string hugging_face_config(const LlamaConfig& config, std::optional<int64_t> end) {
  Json json = described("LlamaForCausalLM", "llama", config, end);
  json.update({{"max_position_embeddings", config.max_seq},
               {"hidden_size", config.dim},
               {"intermediate_size", config.hidden},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.kv_heads},
               {"head_dim", config.head_dim()},
               {"hidden_act", "silu"},
               {"rms_norm_eps", config.norm_eps},
               {"rope_theta", config.rope_theta},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"mlp_bias", false}});
  return text_of(json);
}

}  // namespace tessera::models
