// Saving and loading a program that runs its own loop, and tells by name what it keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/plan/module_tree.h"

namespace tessera::checkpoint {

// What such a program keeps. Every rank has the same names and values.
struct OwnLoop {
  std::vector<plan::NamedTensor> model;                          // parameters and buffers
  std::vector<std::pair<std::string, at::Tensor>> moments = {};  // `exp_avg/<name of the parameter>`
  catalogue::Values values = {};                                 // the optimizer's and its own, each JSON
};

// Saves it, after `step` steps, as step_<step> in the folder `run`, which is made if need be; with the place in the
// program that random numbers follow from. As start_save of a job. Collective over the job.
std::unique_ptr<Saving> start_save(const std::string& run, int64_t step, const OwnLoop& loop,
                                   const SaveOptions& options = {});

struct OpenOptions {
  bool allows_other_sums = false;     // numerics or a lattice other than those that it was saved with
  bool allows_other_numbers = false;  // another generator
};

// The checkpoint that `folder` is, or the newest whole one of a run. Throws DataError as load of a job does. Nothing is
// changed. Collective over the job.
OpenCheckpoint open_own_loop(const std::string& folder, OpenOptions options);

// Throws DataError that names all tensors which are missing, extra or of other sizes or dtypes; the checkpoint's
// moments may be more unless `with_moments`.
void verify_fits(const OpenCheckpoint& checkpoint, const OwnLoop& loop, bool with_moments);

// Fills the tensors of the program with those of the checkpoint, and sets this rank's random numbers to what they
// were; `loop.values` are not looked at. Throws as verify_fits, or DataError if it is damaged, having changed nothing.
// Returns the step. Collective over the job.
int64_t load(const OpenCheckpoint& checkpoint, const OwnLoop& loop, bool with_moments);

}  // namespace tessera::checkpoint
