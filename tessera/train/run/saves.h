// Checkpoints of a run: saved on the way, found again, gone on from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/program/job.h"
#include "tessera/comm/core/finish.h"
#include "tessera/data/sampler.h"
#include "tessera/parallel/job.h"
#include "tessera/train/run/config.h"

namespace tessera::train {

// When a run is saved, and where.
struct SavePolicy {
  std::string folder;                                           // of the checkpoints; empty: never
  int64_t every = 0;                                            // steps; also after the last
  int64_t keep = 2;                                             // the newest ones that stay; 0: all
  std::vector<std::pair<std::string, std::string>> files = {};  // small files beside the tensors, by name
};

// Where the checkpoints of a run lie in its folder.
std::string checkpoints_folder(const std::string& run);

// A checkpoint to go on from: its folder, and how many steps were done.
struct ResumePoint {
  std::string folder;
  int64_t step = 0;
};

// Where a run may go on.
struct ResumePlan {
  std::vector<ResumePoint> points = {};   // the first that turns out to be what was written; none: at the beginning
  std::vector<std::string> skipped = {};  // newer checkpoints that are damaged, and how
};

// What `--resume` means: the checkpoint of that folder, or the newest whole one of a run's folder; with `auto` the
// whole ones of `run`, newest first, or none if it has no checkpoint yet. Throws DataError if there is none, or with
// `auto` none that is whole among some that are damaged.
ResumePlan find_resume_plan(const std::string& resume, const std::string& run);

// Removes all checkpoints of a run's folder. Nobody else may write there.
void remove_checkpoints(const std::string& run);

// Makes way for a run that goes on after its newest whole checkpoint: removes newer ones that were not finished, and
// sets damaged ones aside as `damaged_step_...`. Nobody else may write there.
void make_way(const std::string& run);

// Makes the job what it was at the first point that is what was written; then damaged ones before it are set aside, and
// of each `on_damage` hears what is wrong and where the job goes on instead. Throws DataError if all are damaged, as
// checkpoint::load, or if the run had another batch, seed or text, which it names. Collective over the job.
void resume(const std::vector<ResumePoint>& points, parallel::Job& job, const Config& config,
            const data::Sampler& sampler, const std::function<void(const std::string&, const ResumePoint&)>& on_damage);

// Saves one rank's job as its policy says; a thread writes while training goes on.
class Saves {
 public:
  Saves(SavePolicy policy, const Config& config, const data::Sampler& sampler);

  // After step `step` of `steps`, counted from 1. Throws what went wrong with the save before. Whether the run is to
  // end here, because some rank was asked to (comm::request_finish): then the step is being saved. Collective over the
  // job.
  bool after_step(const parallel::Job& job, int64_t step, int64_t steps);

  // Waits until the last save is whole. Collective over the job.
  void finish();

 private:
  const SavePolicy policy_;
  const catalogue::Values values_;
  std::optional<comm::FinishScope> finishes_;  // if anything is saved
  uint64_t finishes_before_ = 0;
  std::unique_ptr<checkpoint::Saving> saving_;
};

}  // namespace tessera::train
