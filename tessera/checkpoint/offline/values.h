// Whether the values in a checkpoint's files are those whose hashes its manifest has.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/offline/progress.h"

namespace tessera::checkpoint {

// Reads every tensor, slice by slice, and returns a sentence for each of another value. Blocks that are damaged are
// find_damage's; this finds what was wrong before it was written. Throws DataError as RangeReader does,
// and for a checkpoint of an older version, whose hashes were others.
std::vector<std::string> find_other_values(const OpenCheckpoint& checkpoint, const Progress& progress = {});

}  // namespace tessera::checkpoint
