#include "tessera/checkpoint/offline/values.h"

#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/format/value_hash.h"

namespace tessera::checkpoint {

std::vector<std::string> find_other_values(const OpenCheckpoint& checkpoint, const Progress& progress) {
  TESSERA_CHECK_AS(DataError, checkpoint.manifest.version == kManifestVersion, "[checkpoint] \"", checkpoint.folder,
                   "\" is of version ", checkpoint.manifest.version, ", whose hashes of values this program does not ",
                   "make; accepted: one of version ", kManifestVersion, ", as `tessera ckpt reshard` writes of it");
  RangeReader reader(*checkpoint.store, checkpoint.folder, checkpoint.manifest);
  std::vector<std::string> found;
  for (const auto& tensor : checkpoint.manifest.tensors) {
    uint64_t hash = 0;
    for (int64_t cell = 0; cell < tensor.slice_count(); ++cell) {
      const auto box = tensor.slice(cell).box;
      hash += hash_slice(reader.read_box(tensor, box), box, tensor.sizes);
      tell(progress, tensor.bytes_of(box));
    }
    if (hash != tensor.value_hash) {
      found.push_back("[checkpoint] " + tensor.name + " in \"" + checkpoint.folder + "\" has the value of hash " +
                      hex(hash) + ", the manifest says " + hex(tensor.value_hash));
    }
  }
  return found;
}

}  // namespace tessera::checkpoint
