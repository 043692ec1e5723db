// A checkpoint that one process writes alone, in the place of all ranks.
#pragma once

#include <string>

#include "tessera/catalogue/catalogue.h"
#include "tessera/checkpoint/folder/rank_files.h"
#include "tessera/checkpoint/format/manifest.h"

namespace tessera::checkpoint {

// Claims a step, and removes it again unless commit() returned. The store must outlive it.
class NewStep {
 public:
  // As begin_save.
  NewStep(Store& store, const std::string& run, int64_t step, int64_t block_size);
  ~NewStep();
  NewStep(const NewStep&) = delete;
  NewStep& operator=(const NewStep&) = delete;

  const std::string& folder() const { return folder_; }

  // To write what a rank would, and leave its receipt.
  RankFiles files_of(int64_t rank) { return {store_, folder_, save_, rank}; }

  // When all of `ranks` have left a receipt.
  Manifest commit(int64_t ranks, const catalogue::Catalogue& catalogue);

 private:
  Store& store_;
  const SaveId save_;
  const std::string folder_;
  bool is_committed_ = false;
};

}  // namespace tessera::checkpoint
