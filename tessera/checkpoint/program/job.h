// Saving and loading a job: the model, its optimizer, the step, random numbers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/ranks/save.h"
#include "tessera/parallel/job.h"

namespace tessera::checkpoint {

// What of a job persists: parameters and buffers under their names (JobOptions::file_names), what its optimizer keeps
// (JobOptions::optimizer), the stream of the generator `stock`, and as values `job` (the step, the seed, numerics with
// their lattice), `optimizer` and `loss_scaler`; with `extra`, values of the program's own, each JSON. Throws as
// add_optimizer, or if an extra value has one of these names.
Contents contents_of(const parallel::Job& job, const catalogue::Values& extra = {});

// Saves the job as step_<its step> in the folder `run`, which is made if need be: that many steps were taken. The
// program goes on while files are written, and calls finish() on every rank in the end. Collective over the job.
std::unique_ptr<Saving> start_save(const std::string& run, const parallel::Job& job, const SaveOptions& options = {},
                                   const catalogue::Values& extra = {});

// The same, and waits; returns the checkpoint's folder.
std::string save(const std::string& run, const parallel::Job& job, const SaveOptions& options = {},
                 const catalogue::Values& extra = {});

struct LoadJobOptions {
  bool allows_other_sums = false;  // numerics or a lattice other than those that it was saved with: other bits follow
};

// Makes the job what was saved, whatever the meshes: `folder` is that of a checkpoint, or of a run, whose newest whole
// one is taken. The next call of the job is the step after. Returns all values. Throws DataError, having changed
// nothing, if there is no whole checkpoint, if it is damaged, if it has other tensors, another optimizer or other
// numerics. An optimizer that has not taken a step gets its state. Collective over the job.
catalogue::Values load(const std::string& folder, parallel::Job& job, LoadJobOptions options = {});

// Makes parameters and buffers those of a checkpoint, which may have been saved of another job or imported; what the
// optimizer keeps, the step and random numbers stay as they are. `folder` as in load. Throws DataError, having changed
// nothing, if tensors are missing, of other sizes or in another form. Collective over the job.
void load_model(const std::string& folder, parallel::Job& job);

// Removes what killed saves left in the folder of a run, whose steps cannot be saved before, and returns these folders;
// does nothing where the run has no folder yet. For a job that begins: no other one may be saving there. Throws
// DataError as Store does. Collective over the job.
std::vector<std::string> remove_unfinished(const std::string& run);

}  // namespace tessera::checkpoint
