// Loading what ranks are to hold from a checkpoint of any layout.
#pragma once

#include <memory>
#include <string>

#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

// One rank looks and the others hear of it. `folder` is that of a step. Throws DataError, on every rank, that names the
// file which is missing, cut, damaged or newer than this program. Collective over the job.
OpenCheckpoint open_for_ranks(std::shared_ptr<Store> store, const std::string& folder);

struct LoadOptions {
  bool allows_extra = false;  // the checkpoint may have more tensors than are wanted
};

// Throws DataError that names all tensors which are missing, extra or of other sizes or dtypes.
void verify_fits(const OpenCheckpoint& checkpoint, const Contents& contents, LoadOptions options = {});

// Fills the tensors of `contents`, whatever their layouts, with those of the checkpoint; their values are not looked
// at. Each block of each file is read and checked by one rank, which holds it until all ranks have read theirs; then
// the others get from it what they need. So a rank holds beside its tensors what it reads, its share of the files, and
// files that are not what was written leave the tensors as they were. Throws as verify_fits, or Damaged (agree.h),
// which names the file, block and tensors. Returns the bytes that this rank read. Collective over the job.
int64_t load_tensors(const OpenCheckpoint& checkpoint, const Contents& contents, LoadOptions options = {});

}  // namespace tessera::checkpoint
