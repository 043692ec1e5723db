// Where the pieces of a rank lie, as JSON in little room.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/format/part.h"

namespace tessera::checkpoint {

// One column for each member of a piece, because tensors of a model resemble each other: names as the number of
// characters that each shares with the one before and the rest, hashes in base 64, the dtype and how many pieces in
// a row have it; dims, sizes, corners of boxes, files and first bytes as runs (Runs::flat).
nlohmann::json to_json(const std::vector<PlacedPiece>& pieces);

// Throws c10::Error or a JSON exception for anything that to_json cannot have written of pieces in these files.
std::vector<PlacedPiece> pieces_from(const nlohmann::json& columns, const std::vector<FileRecord>& files);

}  // namespace tessera::checkpoint
