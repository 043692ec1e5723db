#include "tessera/checkpoint/format/weight_index.h"

#include <nlohmann/json.hpp>

namespace tessera::checkpoint {

bool is_model_part(const std::string& name) { return name.starts_with("model-") && name.ends_with(".safetensors"); }

std::string write_weight_map(const std::map<std::string, std::string>& file_of, int64_t bytes) {
  return nlohmann::ordered_json{{"metadata", {{"total_size", bytes}}}, {"weight_map", file_of}}.dump(2) + "\n";
}

std::string write_weight_index(const std::vector<TensorTable>& tensors, const std::vector<FileRecord>& files) {
  int64_t total = 0;
  std::map<std::string, std::string> file_of;
  for (const auto& tensor : tensors) {
    const auto& file = files[static_cast<size_t>(tensor.files.at(0))].name;
    if (tensor.is_whole() && is_model_part(file)) {
      file_of[tensor.name] = file;
      total += tensor.bytes_of(everything(tensor.sizes));
    }
  }
  return file_of.empty() ? "" : write_weight_map(file_of, total);
}

}  // namespace tessera::checkpoint
