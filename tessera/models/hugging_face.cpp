#include "tessera/models/hugging_face.h"

namespace tessera::models {

using catalogue::NameMap;
using catalogue::NameRule;

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

}  // namespace tessera::models
