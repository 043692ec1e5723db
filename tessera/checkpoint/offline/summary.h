// What a checkpoint holds, for people and for programs.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/folder/opened.h"

namespace tessera::checkpoint {

// {"folder", "step", "save", "ranks", "bytes" (of all files), "files": [{"name", "bytes"}], "tensors": [{"name",
// "role", "dtype", "sizes", "bytes", "mesh", "layout" (at which it was saved), "slices", "hash" (of the value, whatever
// the layout)}], "values": {name: value}}. No file but the manifest is read.
nlohmann::ordered_json summary_of(const OpenCheckpoint& checkpoint);

// The same as text: a line for each file, tensor and value.
std::string text_of_summary(const nlohmann::ordered_json& summary);

}  // namespace tessera::checkpoint
