// A checkpoint that is there to be read.
#pragma once

#include <memory>
#include <string>

#include "tessera/catalogue/catalogue.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

// Its manifest is whole, its files have their sizes.
struct OpenCheckpoint {
  std::shared_ptr<Store> store;
  std::string folder;
  Manifest manifest;
  catalogue::Catalogue catalogue;  // with the layouts that it was saved at
};

// `folder` as find_checkpoint takes it. Throws DataError that names the file which is missing, cut, damaged or newer
// than this program.
OpenCheckpoint open_for_reading(std::shared_ptr<Store> store, const std::string& folder);

}  // namespace tessera::checkpoint
