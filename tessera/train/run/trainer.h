// A training run on ranks that are threads of this process or, under a launcher, processes.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/run/config.h"
#include "tessera/train/run/report.h"

namespace tessera::train {

struct TrainOptions {
  std::string metrics;     // JSONL file, one object a step; empty: metrics.jsonl in the folder, if there is one
  std::string ledger;      // JSON file of what every rank sent, by axis, collective and op; empty: none
  std::string folder;      // run folder (run_folder.h); empty: none
  bool replace = false;    // the run that the folder holds; else it is refused
  int64_t save_every = 0;  // steps between checkpoints, in the folder's checkpoints/, one after the last too; 0: none
  int64_t keep = 2;        // checkpoints that stay; 0: all
  std::string resume;      // `auto`: the folder's newest checkpoint if it has one; or the folder of a run or of a step
  std::string init_from;   // a checkpoint, or a run's folder: whose parameters the run begins with; empty: drawn ones
  std::string profile;  // steps to trace, such as 3-5, into the folder's trace/steps_3-5.json (profile.h); empty: none
  std::ostream* out = nullptr;  // progress for people, and a sample of text at the end; null: none
};

// How far the first steps on one rank and on all of them are apart.
struct Proof {
  static constexpr int64_t kSteps = 20;
  int64_t steps = 0;
  int64_t ranks = 0;
  std::string mesh;
  double difference = 0;  // largest |a - b| / |a| of the loss over the steps
  double tolerance = 0;   // 0 in `exact` numerics
  bool is_exact = false;
  bool holds() const { return difference <= tolerance; }
};

// `proof: first 20 steps on 1 rank and on 4 (dp=2,tp=2): largest relative difference of the loss 3.1e-07 (<= 1e-05):
// same training`; in `exact` numerics `... 0.0e+00 (numerics exact): same bits`.
std::string proof_line(const Proof& proof);

struct TrainResult {
  std::vector<StepRecord> steps;
  std::optional<EvalRecord> held_out;  // the last evaluation; nothing if nothing is held out
  std::optional<Proof> proof;          // if the configuration asks for it
};

// Runs the configuration, and the proof if it asks for one. Throws what a rank threw; ConfigError and DataError come
// before any rank starts, Stopped when the run was asked to end (comm::request_finish) and its last step is saved.
//
// Under a launcher this process runs one rank of it (launch::run_job): rank 0 writes the files and makes the proof, the
// ranks of LOG_RANK show progress, and every rank returns the same records.
TrainResult train(const Config& config, const TrainOptions& options = {});

}  // namespace tessera::train
