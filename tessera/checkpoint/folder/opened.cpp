#include "tessera/checkpoint/folder/opened.h"

#include "tessera/catalogue/catalogue_json.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"

namespace tessera::checkpoint {

OpenCheckpoint open_for_reading(std::shared_ptr<Store> store, const std::string& folder) {
  OpenCheckpoint checkpoint{.store = std::move(store), .folder = folder, .manifest = {}, .catalogue = {}};
  checkpoint.folder = find_checkpoint(*checkpoint.store, folder);
  checkpoint.manifest = open_checkpoint(*checkpoint.store, checkpoint.folder);
  checkpoint.catalogue =
      catalogue::from_json(checkpoint.manifest.catalogue.dump(), path_in(checkpoint.folder, kManifest));
  return checkpoint;
}

}  // namespace tessera::checkpoint
