// Makes a checkpoint of what all ranks wrote.
//
// Note [What lasts before what]
//   A checkpoint is whole if its manifest is (its checksum is the last thing in it) and all files that the manifest
//   names have their sizes. That a manifest is whole must imply that everything else lasts, whenever the power goes:
//     1. a rank's files: each is synchronised by NewFile::close(), then the folder, so that their names last too;
//     2. its receipt: made only then. Whoever can read a whole receipt may rely on 1, whether or not the receipt lasts;
//     3. the manifest: made only when the receipts of all ranks were read, and the index, which its writer adds, went
//        through 1. So whenever any of the manifest is on a disk, all that it names is;
//     4. the commit is over when the manifest, its name and that of the folder last. Only then older checkpoints are
//        removed.
//   Receipts are not among what the manifest names: they have checksums of their own, and nothing depends on them once
//   it is there. (Their writers synchronise their content; their names last when the commit is over. A loss of power
//   before that may leave a whole checkpoint of which verify_checkpoint() says that a receipt is missing.)
//   Removal goes the other way: the manifest first, then the folder is synchronised, then the rest. So a manifest
//   whose files are missing is damage, and never the work of a job that was killed.
//   The names of the step's folder and of its claim are not made to last before anything is in it: what a loss of power
//   leaves of a folder without a claim is not written to either (claim_step).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/format/manifest.h"

namespace tessera::checkpoint {

struct CommitOptions {
  double deadline = 600;                   // seconds to wait for receipts
  double poll = 0.05;                      // seconds between two looks, at first fewer
  std::function<void(double)> sleep = {};  // waits so many seconds; empty: this thread sleeps
};

// Waits for the receipts of ranks [0, ranks) and writes the index of parameters and the manifest; returns it. One rank
// does so, in any thread. Throws DataError: receipts that do not come (it says of which ranks), a receipt of another
// save, slices that are missing or there twice, or as Store does. Then there is no manifest, or it is not whole.
Manifest commit(Store& store, const std::string& folder, const SaveId& save, int64_t ranks, nlohmann::json catalogue,
                const CommitOptions& options = {});

}  // namespace tessera::checkpoint
