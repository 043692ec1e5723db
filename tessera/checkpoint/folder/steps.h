// The checkpoints of a run: which there are, the newest that is whole, and the removal of old ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/format/manifest.h"

namespace tessera::checkpoint {

enum class StepState {
  kWhole,       // its manifest checks, and all of its files have their sizes
  kUnfinished,  // it has no manifest, or one that was not written to its end: being written, or left by a killed save
  kDamaged,     // anything else: no save and no removal leaves that behind, whenever it is killed
};

struct StepFolder {
  int64_t step = 0;
  std::string path;
  StepState state = StepState::kUnfinished;
  std::string reason = {};  // why it is not whole
};

// What a step's folder, which is there, holds.
StepFolder look_at_step(Store& store, const std::string& folder, int64_t step);

// The manifest of a checkpoint that is whole. Throws DataError that names the file that is missing, cut or damaged. The
// content of files is looked at by RangeReader and verify_checkpoint alone.
Manifest open_checkpoint(Store& store, const std::string& folder);

// Throws DataError if the folder is that of another step.
void verify_step(const Manifest& manifest, const std::string& folder);

// All steps of a run by number, ascending. Throws DataError if the run's folder cannot be listed.
std::vector<StepFolder> list_steps(Store& store, const std::string& run);

// The whole one of the highest step; nothing if none is whole.
std::optional<StepFolder> newest_whole(Store& store, const std::string& run);

// The folder of the checkpoint that is meant: `folder` itself where its name is that of a step; else the newest whole
// one of the run that `folder` is, or that lies in its folder `checkpoints`. Throws DataError if none is whole, with
// what each lacks.
std::string find_checkpoint(Store& store, const std::string& folder);

// The folder in which the steps of a run lie: `folder`, or its `checkpoints` where it has one.
std::string steps_folder(Store& store, const std::string& folder);

struct PruneOptions {
  int64_t keep = 1;                     // whole checkpoints that stay: those of the highest steps
  std::optional<int64_t> writing = {};  // a step that is being written, which stays too
};

// Removes older checkpoints than those to keep, and what killed saves left below the newest whole one. Damaged ones
// stay where they are newer than the oldest that is kept. Does nothing if none is whole. One rank does so; it may be
// killed and called again. Returns the removed folders. Throws c10::Error for keep < 1, DataError as Store does.
std::vector<std::string> prune(Store& store, const std::string& run, const PruneOptions& options);

// Removes what killed saves left, also above the newest whole one. For a job that begins, and knows that no other one
// writes there: a save that is under way fails if its files go. Returns the removed folders.
std::vector<std::string> remove_unfinished(Store& store, const std::string& run);

// Removes one step's folder in the order of Note [What lasts before what], the claim last: until then nobody else gets
// it.
void remove_step(Store& store, const std::string& folder);

}  // namespace tessera::checkpoint
