// Moving a tensor from one layout to another: planned and compiled once, then replayed.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/move/compiled_step.h"
#include "tessera/layout/spec.h"
#include "tessera/reshard/path.h"

namespace tessera::dtensor {

// One planned redistribution. Belongs to the rank that planned it. Of two dtypes: the part is cast first.
struct Move {
  layout::Spec from;
  layout::Spec to;
  bool casts = false;
  reshard::Path path;
  std::vector<CompiledStep> steps;  // the path's, on this rank
  bool communicates = false;        // some step needs other ranks
  bool keeps_storage = true;        // the part stays the same memory
};

using MovePtr = std::shared_ptr<const Move>;

// The moves of one rank, by pair of layouts: those that plans hold, and others until there are too many.
class Moves {
 public:
  static constexpr size_t kMost = 64;

  // `context`, the rank's, must outlive it.
  explicit Moves(comm::RankContext& context) : context_(context) {}

  MovePtr find_or_plan(const layout::Spec& from, const layout::Spec& to);
  size_t size() const { return moves_.size(); }

 private:
  struct Hash {
    size_t operator()(const std::pair<const void*, const void*>& key) const {
      return reinterpret_cast<size_t>(key.first) * 31 + reinterpret_cast<size_t>(key.second);
    }
  };
  void drop_unused();

  comm::RankContext& context_;
  std::unordered_map<std::pair<const void*, const void*>, MovePtr, Hash> moves_;
  size_t most_ = kMost;
};

// Runs the steps on this rank's part. `op` names who asked, for the ledger and for messages.
// Collective over the axes that the steps name. Never writes to `local`; the result may share its storage.
at::Tensor run_move(comm::RankContext& ctx, const Move& move, const at::Tensor& local, const char* op);

}  // namespace tessera::dtensor
