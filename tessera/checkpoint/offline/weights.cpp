#include "tessera/checkpoint/offline/weights.h"

#include <filesystem>
#include <map>
#include <set>

#include <ATen/EmptyTensor.h>
#include <nlohmann/json.hpp>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/value_hash.h"
#include "tessera/checkpoint/format/weight_index.h"
#include "tessera/checkpoint/offline/new_step.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";

void make_empty_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  const bool is_empty = !error && fs::is_empty(folder, error);
  TESSERA_CHECK_AS(DataError, !error, "[checkpoint] cannot make the folder \"", folder, "\": ", error.message(),
                   "; accepted: one that may be written to");
  TESSERA_CHECK_AS(DataError, is_empty, "[checkpoint] \"", folder,
                   "\" has files already; accepted: a folder that is empty or not there yet");
}

void write_file(const fs::path& path, std::string_view content) {
  base::AtomicFile file(path);
  file.write(content);
  file.commit();
}

at::ScalarType dtype_for(at::ScalarType dtype, const std::optional<at::ScalarType>& wanted) {
  return wanted && at::isFloatingType(dtype) ? *wanted : dtype;
}

int64_t bytes_for(const TensorTable& tensor, const ExportOptions& options) {
  return reshard::numel(everything(tensor.sizes)) *
         static_cast<int64_t>(at::elementSize(dtype_for(tensor.dtype, options.dtype)));
}

// The tables of what is exported, in the files that they go to.
std::vector<std::vector<const TensorTable*>> in_parts(const OpenCheckpoint& from, const ExportOptions& options) {
  std::vector<std::vector<const TensorTable*>> parts;
  int64_t bytes = 0;
  for (const auto& tensor : from.manifest.tensors) {
    if (!is_of_model(from.catalogue.at(tensor.name).role)) {
      continue;
    }
    const auto own = bytes_for(tensor, options);
    if (parts.empty() || bytes + own > options.part_size) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(&tensor);
    bytes += own;
  }
  TESSERA_CHECK_AS(DataError, !parts.empty(), "[checkpoint] \"", from.folder,
                   "\" has no parameters; accepted: a checkpoint of a model");
  return parts;
}

void write_part(const std::string& path, const std::vector<const TensorTable*>& tensors, RangeReader& reader,
                const ExportOptions& options) {
  std::vector<NamedTensor> described;
  std::map<std::string, const TensorTable*> tables;
  for (const auto* tensor : tensors) {
    described.push_back({tensor->name, at::detail::empty_meta(tensor->sizes, dtype_for(tensor->dtype, options.dtype))});
    tables[tensor->name] = tensor;
  }
  described = in_file_order(std::move(described));
  SafetensorsWriter writer(path, described, {{"format", "pt"}});
  for (const auto& [name, unused] : described) {
    const auto value = reader.read_box(*tables.at(name), everything(tables.at(name)->sizes));
    writer.write(value.to(dtype_for(value.scalar_type(), options.dtype)));
    tell(options.progress, static_cast<int64_t>(value.nbytes()));
  }
  writer.commit();
}

std::string text_of_file(const fs::path& path) {
  const auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(DataError, text, "[checkpoint] cannot read \"", path.string(), "\"; accepted: a readable file");
  return *text;
}

// The names of the files of parameters, each once.
std::vector<std::string> files_of_weights(const fs::path& folder) {
  if (fs::exists(folder / kOneFile)) {
    return {kOneFile};
  }
  TESSERA_CHECK_AS(DataError, fs::exists(folder / kWeightIndex), "[checkpoint] \"", folder.string(), "\" has neither ",
                   kOneFile, " nor ", kWeightIndex,
                   "; accepted: a folder that model.save_pretrained(folder, safe_serialization=True) wrote");
  const auto path = folder / kWeightIndex;
  std::set<std::string> names;
  try {
    const auto index = nlohmann::json::parse(text_of_file(path));
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      names.insert(file.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    TESSERA_THROW(DataError, "[checkpoint] \"", path.string(), "\" is no index of parameters: ", error.what(),
                  "; accepted: {\"weight_map\": {name: file}}");
  }
  for (const auto& name : names) {
    TESSERA_CHECK_AS(DataError, fs::path(name).filename() == name, "[checkpoint] \"", path.string(),
                     "\" names the file \"", name, "\"; accepted: files beside it");
  }
  return {names.begin(), names.end()};
}

std::vector<Piece> pieces_of(const fs::path& path, const ImportOptions& options) {
  std::vector<Piece> pieces;
  for (auto& [name, found] : load_safetensors(path).tensors) {
    const auto to = options.name ? options.name(name) : name;
    if (to) {
      const auto tensor = found.to(dtype_for(found.scalar_type(), options.dtype));
      const auto sizes = tensor.sizes().vec();
      pieces.push_back({*to, sizes, everything(sizes), tensor, hash_slice(tensor, everything(sizes), sizes)});
      tell(options.progress, static_cast<int64_t>(tensor.nbytes()));
    }
  }
  return pieces;
}

}  // namespace

void export_weights(const OpenCheckpoint& from, const std::string& folder, const ExportOptions& options) {
  const auto parts = in_parts(from, options);
  make_empty_folder(folder);
  const fs::path to(folder);
  RangeReader reader(*from.store, from.folder, from.manifest);
  for (const auto& [name, content] : small_files_of(from.manifest, reader)) {
    write_file(to / name, content);
  }
  std::map<std::string, std::string> file_of;
  int64_t total = 0;
  const auto count = static_cast<int64_t>(parts.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto name = count == 1 ? kOneFile : model_part_name(i, count);
    for (const auto* tensor : parts[static_cast<size_t>(i)]) {
      file_of[tensor->name] = name;
      total += bytes_for(*tensor, options);
    }
    write_part(to / name, parts[static_cast<size_t>(i)], reader, options);
  }
  if (count > 1) {
    write_file(to / kWeightIndex, write_weight_map(file_of, total));
  }
}

std::string import_weights(const std::string& folder, const std::shared_ptr<Store>& store, const std::string& run,
                           const ImportOptions& options) {
  const auto names = files_of_weights(folder);
  NewStep step(*store, run, options.step, kBlockSize);
  auto files = step.files_of(0);
  for (const auto& [name, content] : options.files) {
    files.write_file(name, content);
  }
  std::vector<catalogue::Entry> entries;
  for (size_t i = 0; i < names.size(); ++i) {
    auto pieces = pieces_of(fs::path(folder) / names[i], options);
    for (const auto& piece : pieces) {
      entries.push_back({piece.name,
                         {},
                         catalogue::Role::kParameter,
                         layout::Spec::contiguous({}, {}, piece.sizes, piece.value.scalar_type())});
    }
    files.write_part(model_part_name(static_cast<int64_t>(i), static_cast<int64_t>(names.size())), std::move(pieces));
  }
  TESSERA_CHECK_AS(DataError, !entries.empty(), "[checkpoint] the files of \"", folder,
                   "\" have no parameters; accepted: a folder that model.save_pretrained wrote");
  const catalogue::Catalogue catalogue(std::move(entries), options.values);
  files.leave_receipt();
  step.commit(1, catalogue);
  return step.folder();
}

}  // namespace tessera::checkpoint
