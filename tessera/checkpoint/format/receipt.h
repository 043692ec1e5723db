// What one rank wrote of a checkpoint, left when all of it lasts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tessera/checkpoint/format/part.h"
#include "tessera/checkpoint/format/sealed.h"

namespace tessera::checkpoint {

struct Receipt {
  SaveId save;
  int64_t rank = 0;
  std::vector<FileRecord> files;
  std::vector<PlacedPiece> pieces;
  bool operator==(const Receipt&) const = default;
};

// A sealed document.
std::string write_receipt(const Receipt& receipt);

// Throws DataError that names `path` for anything that write_receipt cannot have written.
Receipt read_receipt(std::string_view text, const std::string& path);

// The members that receipts and manifests have in common: which save, and files.
std::string text_of(const SaveId& save);
SaveId take_save(Document& document);
std::string text_of(const std::vector<FileRecord>& files);
std::vector<FileRecord> take_files(Document& document, const SaveId& save);

}  // namespace tessera::checkpoint
