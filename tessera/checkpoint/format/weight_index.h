// `model.safetensors.index.json`: in which file each parameter lies, as `transformers` reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/format/tensor_table.h"

namespace tessera::checkpoint {

// The name of the file.
constexpr const char* kWeightIndex = "model.safetensors.index.json";

// Whether a file of this name holds parameters for others to read: model-00001-of-00004.safetensors.
bool is_model_part(const std::string& name);

// Its content: the file of each tensor, and the bytes of all.
std::string write_weight_map(const std::map<std::string, std::string>& file_of, int64_t bytes);

// The same of the tensors that lie whole in such files. Empty if there is none.
std::string write_weight_index(const std::vector<TensorTable>& tensors, const std::vector<FileRecord>& files);

}  // namespace tessera::checkpoint
