// Weights in and out: folders of safetensors files as `transformers` and others save and load them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/offline/progress.h"

namespace tessera::checkpoint {

struct ExportOptions {
  int64_t part_size = int64_t{5} << 30;      // bytes after which another file begins
  std::optional<at::ScalarType> dtype = {};  // of floating tensors; nothing: as they are
  Progress progress = {};
};

// Writes parameters and buffers, whole, and the small files of a checkpoint (config.json, a tokenizer) to a folder that
// is made and must be empty: `model.safetensors`, or several files and their index. One tensor is in memory at a time.
// Throws DataError if the folder has files, on a damaged checkpoint or a disk that fails.
void export_weights(const OpenCheckpoint& from, const std::string& folder, const ExportOptions& options = {});

struct ImportOptions {
  int64_t step = 0;  // that the checkpoint is to be of
  // What a tensor is to be called, nothing if it is to be left out; empty: as in the files.
  std::function<std::optional<std::string>(const std::string& name)> name = {};
  std::optional<at::ScalarType> dtype = {};  // of floating tensors; nothing: as they are
  catalogue::Values values = {};
  std::vector<std::pair<std::string, std::string>> files = {};  // small ones, by name
  Progress progress = {};
};

// Writes a checkpoint below the folder `run`, which is made if need be, of the parameters in another library's folder:
// model.safetensors, or the files that model.safetensors.index.json lists. One file is in memory at a time. Returns the
// checkpoint's folder. Throws DataError that names the file and what is wrong with it, or if the step is there already.
std::string import_weights(const std::string& folder, const std::shared_ptr<Store>& store, const std::string& run,
                           const ImportOptions& options = {});

}  // namespace tessera::checkpoint
