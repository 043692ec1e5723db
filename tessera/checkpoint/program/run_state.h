// What every program on ranks has beside its tensors, whether a job runs its steps or it does so itself: the step, the
// seed, which numbers come next, how sums are made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/ranks/load.h"
#include "tessera/parallel/loss_scaler.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {

// The value that has it: `{"step": 15, "seed": 7, "numerics": "fast"}`.
constexpr const char* kJob = "job";

// ... that has a job's LossScaler: `{"scale": 65536.0, "good_steps": 12}`.
constexpr const char* kLossScaler = "loss_scaler";

// Adds a model's parameters and buffers.
void add_model(const std::vector<plan::NamedTensor>& tensors, Contents& contents);

// Adds values of the program's own. Throws c10::Error if one has a name that is taken.
void add_values(const catalogue::Values& values, Contents& contents);

// Adds the value `job` of this rank's program, which has taken so many steps, and the stream of the generator `stock`.
void add_run_state(int64_t step, Contents& contents);

// Opens the checkpoint that `folder` means (find_checkpoint), on every rank the same. Throws DataError if there is
// none, or as open_for_ranks. Collective over the job.
OpenCheckpoint open_newest(std::shared_ptr<Store> store, const std::string& folder);

// The same of a run: throws if it has no value `job`.
OpenCheckpoint open_run(std::shared_ptr<Store> store, const std::string& folder);

// Throws DataError if sums of this rank are not made as they were then: other bits follow.
void verify_numerics(const OpenCheckpoint& checkpoint);

// Whether this rank has the generator with which the checkpoint was saved, else other random numbers follow; throws
// DataError if not.
bool has_same_generator(const OpenCheckpoint& checkpoint);
void verify_generator(const OpenCheckpoint& checkpoint);

// Adds the stream where both this rank and the checkpoint have one.
void add_stream(const OpenCheckpoint& checkpoint, Contents& contents);

// Throws DataError that names every tensor of a program that is missing, extra or of other sizes or dtypes. Moments of
// the checkpoint are none of the extra ones unless `with_moments`.
void verify_program(const OpenCheckpoint& checkpoint, const Contents& contents, bool with_moments);

// Adds the value `loss_scaler`, and makes a scaler what that says; one that was saved without it stays as it is.
void add_loss_scaler(const parallel::LossScaler& scaler, Contents& contents);
void restore_loss_scaler(const OpenCheckpoint& checkpoint, parallel::LossScaler& scaler);

// Seeds this rank's generator as it was, and restores its stream if the contents, which were loaded, have one. Returns
// the step.
int64_t restore_run_state(const OpenCheckpoint& checkpoint, const Contents& contents);

}  // namespace tessera::checkpoint
