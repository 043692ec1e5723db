#include "tessera/checkpoint/offline/new_step.h"

#include <nlohmann/json.hpp>

#include "tessera/catalogue/catalogue_json.h"
#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/commit.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"

namespace tessera::checkpoint {

NewStep::NewStep(Store& store, const std::string& run, int64_t step, int64_t block_size)
    : store_(store), save_(begin_save(store, run, step, block_size)), folder_(step_folder(run, step)) {}

NewStep::~NewStep() {
  if (is_committed_) {
    return;
  }
  try {
    remove_step(store_, folder_);
  } catch (const DataError&) {  // what made the save fail is told; remove_unfinished finds the rest
  }
}

Manifest NewStep::commit(int64_t ranks, const catalogue::Catalogue& catalogue) {
  auto manifest =
      checkpoint::commit(store_, folder_, save_, ranks, nlohmann::json::parse(catalogue::to_json(catalogue)));
  is_committed_ = true;
  return manifest;
}

}  // namespace tessera::checkpoint
