// How Hugging Face's files describe these models, and name and lay out their parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/catalogue/name_map.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"

namespace tessera::models {

// From the names of our parameters to those of GPT2LMHeadModel. The names are the same; the weights of the projections
// lie as those of its Conv1D ([in, out]), and the fused rows of Q, K and V in the order [(q, k, v), heads, head_dim].
catalogue::NameMap hugging_face_names(const GptConfig& config);

// ... to those of LlamaForCausalLM: names and forms are the same, and those that no Llama has are refused.
catalogue::NameMap hugging_face_names(const LlamaConfig& config);

// The `config.json` with which `transformers` makes the model. `end`: the token that ends a document, if there is one.
std::string hugging_face_config(const GptConfig& config, std::optional<int64_t> end);
std::string hugging_face_config(const LlamaConfig& config, std::optional<int64_t> end);

}  // namespace tessera::models
