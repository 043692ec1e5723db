// How the folders and files of checkpoints are called.
//
//   run/step_000100/claim.json                        which save it is, and whose: made first
//                   model-00001-of-00002.safetensors  parts: parameters and buffers, whole
//                   state-00003.safetensors           parts: slices, of rank 3
//                   model.safetensors.index.json, config.json, ...
//                   receipt-00003.json                what rank 3 wrote
//                   manifest.json                     all of it: made last
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::checkpoint {

constexpr const char* kClaim = "claim.json";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kCheckpoints = "checkpoints";  // the folder of a run that has other files too

// The folder of a step below that of its run.
std::string step_folder(const std::string& run, int64_t step);

// The step of a folder's name `step_000100`, or nothing if it is none.
std::optional<int64_t> try_step_of(const std::string& name);

std::string receipt_name(int64_t rank);

// The rank of `receipt-00003.json`, or nothing.
std::optional<int64_t> try_receipt_rank(const std::string& name);

std::string state_part_name(int64_t rank);

// `index` counts from 0, the name from 1.
std::string model_part_name(int64_t index, int64_t count);

}  // namespace tessera::checkpoint
