// A step of a redistribution as one rank runs it: all that layouts say, worked out once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dtensor/move/pieces.h"
#include "tessera/reshard/path.h"

namespace tessera::dtensor {

// What a rank does in a step. The first five need no other rank.
enum class Action : uint8_t {
  kKeep,
  kForget,  // the part becomes a tensor of no elements
  kSlice,
  kFill,  // with the value that the op ignores
  kPad,   // the part stands in such values
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,  // from one coordinate to another, whoever else does something else
};

constexpr bool is_local(Action action) { return action < Action::kAllReduce; }

// One step on one rank. A value; holds no tensor and no communicator.
struct CompiledStep {
  Action action = Action::kKeep;

  // For the ledger, of a step that communicates, whether or not this rank takes part in it. Else `collective` is null.
  const char* collective = nullptr;
  std::string axis_name = {};  // or the mesh, if it is over all of it
  int64_t bytes = 0;

  // The group: a line of `axis` of `mesh`; all of it if -1.
  layout::Mesh mesh = {};
  int64_t axis = -1;

  layout::ReduceOp op = layout::ReduceOp::kSum;  // of a reduction; whose ignored value fills
  int64_t parts = 1;                             // that an average divides by
  int64_t root = 0;                              // of a broadcast
  bool gives_part = true;                        // kBroadcast: this rank is the root

  // Of a step over one axis: the placements between which the value goes, and whether this rank holds it in each.
  layout::Placement from = {}, to = {};
  bool is_at_from = false, is_at_to = false;
  // Where on another axis the tensor is (On), if it is, and whether this rank is there.
  layout::Placement home = {};
  std::string home_axis = {};
  bool is_at_home = true;

  // Where cuts are interleaved or span dims: the part is taken apart before the step, and what it gives is put together
  // after it.
  std::vector<int64_t> taken_apart = {}, put_together = {};

  std::vector<int64_t> result_sizes = {};  // of what the action makes
  // kSend: the dims from the slowest to the fastest, as the one-device program has them in memory; empty: as they come.
  // What is sent lies so behind it, too: kernels give other bits for other orders.
  std::vector<int64_t> order = {};
  Slices slices = {};    // kSlice: of the part, what stays. kPad: of the result, where the part stands
  Pieces sends = {};     // of the part, by receiver
  Pieces receives = {};  // of the result, by sender
};

// The steps of a path on `rank`, which is on all of its meshes. Not collective.
std::vector<CompiledStep> compile_path(const reshard::Path& path, int64_t rank);

// What a rank sends of its part, which holds `before`, and receives into one that holds `after`, in an all-to-all over
// `ranks`.
struct Traffic {
  Pieces sends, receives;
};
Traffic compile_transfers(const reshard::RankTransfers& transfers, const std::vector<int64_t>& ranks,
                          const reshard::Box& before, const reshard::Box& after);

}  // namespace tessera::dtensor
