// The file that makes a checkpoint one: what it holds, where, and the checksums of all of it. Written last.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/format/receipt.h"
#include "tessera/checkpoint/format/tensor_table.h"

namespace tessera::checkpoint {

constexpr int64_t kManifestVersion = 2;  // 1: another base::hash_element

// A value; thread-safe.
struct Manifest {
  int64_t version = kManifestVersion;  // values of two versions have hashes that tell nothing of each other
  SaveId save;
  int64_t ranks = 0;         // that wrote it, each of which left a receipt
  nlohmann::json catalogue;  // what the names mean: not looked at here
  std::vector<FileRecord> files;
  std::vector<TensorTable> tensors;  // by name, ascending

  // The tensor of that name; null if there is none.
  const TensorTable* find(const std::string& name) const;

  // The index of the file of that name; -1 if there is none.
  int64_t file_index(const std::string& name) const;

  bool operator==(const Manifest&) const = default;
};

// A sealed document. Its tables: a row of `files` is name, bytes, first byte of data, and the blocks' checksums in
// base 64; a row of `tensors` is name, dtype, sizes, hash of the value, then as runs (Runs::flat) the cuts of each dim,
// the file of each slice and its first byte behind the file's data.
std::string write_manifest(const Manifest& manifest);

// Throws DataError that names `path` for anything that write_manifest cannot have written, or that is newer.
Manifest read_manifest(std::string_view text, const std::string& path);

// Makes a manifest of the receipts of all ranks.
class ManifestMaker {
 public:
  explicit ManifestMaker(const SaveId& save) { manifest_.save = save; }

  // In any order. Throws DataError: another save, a rank or a file that was there already. `path` names the receipt.
  void add(const Receipt& receipt, const std::string& path);

  // Files that no receipt has.
  void add(const FileRecord& file);

  // The tensors of all receipts, by name. Throws DataError where a slice is missing or there twice.
  std::vector<TensorTable> tensors() const;

  Manifest make(nlohmann::json catalogue) const;

 private:
  Manifest manifest_;
  std::map<int64_t, std::string> receipts_;  // of each rank
  std::map<std::string, int64_t> file_at_;
  std::map<std::string, TableMaker> tables_;
};

}  // namespace tessera::checkpoint
