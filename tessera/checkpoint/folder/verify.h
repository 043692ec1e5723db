// Whether a checkpoint is what was written, to the last bit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/format/manifest.h"

namespace tessera::checkpoint {

struct VerifyOptions {
  std::function<void(int64_t)> progress = {};  // told of so many more bytes that were read
};

// Reads every byte of a checkpoint's folder and returns what is wrong with it, a sentence each, with files and tensors
// by name; nothing if all is well. Every file is covered: those of the manifest block by block, manifest, claim and
// receipts by checksums of their own; a file that belongs to nothing is reported too. Throws DataError only if the
// folder cannot be listed.
std::vector<std::string> find_damage(Store& store, const std::string& folder, const VerifyOptions& options = {});

// Throws DataError with all that find_damage finds, if it finds anything.
void verify_checkpoint(Store& store, const std::string& folder, const VerifyOptions& options = {});

}  // namespace tessera::checkpoint
