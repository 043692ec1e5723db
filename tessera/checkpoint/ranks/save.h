// Saving what ranks hold to a checkpoint, while they go on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/format/block_hashes.h"
#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

struct SaveOptions {
  bool in_slices = false;           // parameters and buffers too: faster, but only tessera reads the result
  bool copies = true;               // false: the program changes nothing of what is saved before finish()
  int64_t keep = 0;                 // whole checkpoints of the run that stay, this one among them; 0: all
  double deadline = 600;            // seconds in which all ranks must have written
  int64_t block_size = kBlockSize;  // bytes of file that have one checksum: a multiple of 8
  // Small files beside the tensors, by name: config.json, a tokenizer. Those of rank 0 are written.
  std::vector<std::pair<std::string, std::string>> files = {};
};

// A save that is under way: what is saved was copied, a thread of this rank writes it. One per rank; the rank's own
// thread uses it.
class Saving {
 public:
  // Waits until this rank's thread is done; what failed is not thrown. Where the job has failed (an exception is on its
  // way) nobody waits for other ranks.
  ~Saving();
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  // The checkpoint's folder.
  const std::string& folder() const { return folder_; }

  // Throws what went wrong so far on this rank, DataError; then the whole job hears of it. Does not wait.
  void check() const;

  // The job has failed: this rank's thread waits for other ranks no longer. What has been written stays unfinished.
  void give_up();

  // Waits until all ranks have written and the checkpoint is whole. Throws as check() does. Collective over the job.
  void finish();

 private:
  friend std::unique_ptr<Saving> start_save(std::shared_ptr<Store>, const std::string&, int64_t, const Contents&,
                                            const SaveOptions&);
  class Writer;
  Saving(std::string folder, std::unique_ptr<Writer> writer);

  std::string folder_;
  std::unique_ptr<Writer> writer_;
};

// Copies what this rank is to write of `contents` and begins to write it to the folder of `step` below `run`, a folder
// that is made if its own folder is there. The program may go on at once (SaveOptions::copies). The copies' memory
// stays with the thread for its next save, as far as the system has no other use for it. The checkpoint is whole when
// every rank has written its share, which rank 0's thread makes sure of; then that thread removes old ones
// (SaveOptions::keep). Throws DataError if the step's folder is another save's, or cannot be written to. Collective
// over the job.
std::unique_ptr<Saving> start_save(std::shared_ptr<Store> store, const std::string& run, int64_t step,
                                   const Contents& contents, const SaveOptions& options = {});

// start_save and finish, without copies of what need not be gathered; returns the folder.
std::string save(std::shared_ptr<Store> store, const std::string& run, int64_t step, const Contents& contents,
                 SaveOptions options = {});

}  // namespace tessera::checkpoint
