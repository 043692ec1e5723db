// A checkpoint written anew, as the ranks of another mesh would have saved it.
#pragma once

#include <string>

#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/offline/progress.h"
#include "tessera/layout/mesh.h"

namespace tessera::checkpoint {

struct ReshardOptions {
  layout::Mesh mesh;
  bool in_slices = false;  // parameters and buffers too (SaveOptions)
  Progress progress = {};
};

// The catalogue on another mesh: an axis places a tensor as the axis of its name did, and where there was none it
// replicates. On(k) beyond the axis is On its last coordinate; what is cut at given places that do not fit the mesh is
// cut evenly.
catalogue::Catalogue on_mesh(const catalogue::Catalogue& catalogue, const layout::Mesh& mesh);

// Writes `from` below the folder `run`, which is made if need be, as the ranks of the mesh would: each the parameters
// that it owns and its slices of the rest. One rank's share is in memory at a time. Small files go along; values and
// their hashes are those of `from`, whose blocks are checked as they are read. Returns the new folder. Throws DataError
// if the step is there already, if `from` is damaged, or as Store does.
std::string reshard(const OpenCheckpoint& from, const std::string& run, const ReshardOptions& options);

}  // namespace tessera::checkpoint
