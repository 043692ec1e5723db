// How Hugging Face's files name and lay out the parameters of these models.
#pragma once

#include "tessera/catalogue/name_map.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"

namespace tessera::models {

// From the names of our parameters to those of GPT2LMHeadModel. The names are the same; the weights of the projections
// lie as those of its Conv1D ([in, out]), and the fused rows of Q, K and V in the order [(q, k, v), heads, head_dim].
catalogue::NameMap hugging_face_names(const GptConfig& config);

// ... to those of LlamaForCausalLM: names and forms are the same, and those that no Llama has are refused.
catalogue::NameMap hugging_face_names(const LlamaConfig& config);

}  // namespace tessera::models
