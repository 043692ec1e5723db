// The tensors of many ranks in one file.
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/format/safetensors.h"

namespace tessera::checkpoint {

// Writes the whole values of DTensors, and plain tensors that all ranks have alike, to a safetensors file, by rank 0.
// That rank holds one whole tensor at a time, the others none. Collective over all ranks of the job, each of which
// returns when the file is there. Throws as SafetensorsWriter does, on rank 0; the others get RankFailed.
void save_gathered(const std::string& path, std::vector<NamedTensor> tensors, const Metadata& metadata = {});

}  // namespace tessera::checkpoint
