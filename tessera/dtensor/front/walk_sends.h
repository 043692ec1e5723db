// Values that the walk of a body of another stage sends between stages, for this rank: sent before it (pass_over.h).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Of the tensors that the walk is given. All that it communicates, if anything.
class WalkSends {
 public:
  WalkSends() = default;
  // Of those that the rank's walk has sent, those since `first`; nothing if another than these tensors is among them.
  static std::optional<WalkSends> since(const RankState& state, size_t first, const std::vector<at::Tensor>& tensors);

  bool is_empty() const { return sends_.empty(); }

  // Does the same for the tensors of another walk. False: one of them lies otherwise, and nothing was sent.
  // Collective over those to whom they are sent.
  bool run(RankState& state, const std::vector<at::Tensor>& tensors) const;

 private:
  struct Send {
    size_t tensor;
    Spec from, to;
    const char* reader;
  };
  std::vector<Send> sends_;
};

}  // namespace tessera::dtensor
