// The right to write a step's folder: one save has it, whatever other jobs do.
#pragma once

#include <string>
#include <string_view>

#include "tessera/checkpoint/format/part.h"

namespace tessera::checkpoint {

// What a folder's claim says.
struct Claim {
  SaveId save;
  std::string owner;  // for people: a host, a process, when
  bool operator==(const Claim&) const = default;
};

std::string write_claim(const Claim& claim);

// Throws DataError that names `path` for anything that write_claim cannot have written.
Claim read_claim(std::string_view text, const std::string& path);

// Makes the folder of the save's step below that of the run, which is there, and claims it. Returns the folder. One
// rank does so, before any writes there. Throws DataError if the step is there already; if it is claimed, and by whom:
// by another job, or by a save that was killed (remove_unfinished); or if it has files but no claim, as a loss of power
// may leave it.
std::string claim_step(Store& store, const std::string& run, const Claim& claim);

// The start of a save: draws its number, makes the folder of the run if need be, and claims the step for this process.
// Throws as claim_step, c10::Error for blocks that are no multiple of 8 bytes.
SaveId begin_save(Store& store, const std::string& run, int64_t step, int64_t block_size);

}  // namespace tessera::checkpoint
