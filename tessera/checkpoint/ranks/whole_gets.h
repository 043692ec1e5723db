// Whole tensors out of the memory of the ranks that hold parts of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/catalogue/catalogue.h"
#include "tessera/checkpoint/ranks/host_memory.h"
#include "tessera/comm/core/window.h"

namespace tessera::checkpoint {

// Where ranks may read each other's memory an owner needs nobody's help for a whole tensor but to be told where the
// parts are, all of them at once. Nobody writes to the tensors from the constructor to finish().
class WholeGets {
 public:
  // `tensors` of the calling rank, in the order of the catalogue's entries, and the owner of each; all outlive this.
  // Collective over the job.
  WholeGets(const catalogue::Catalogue& catalogue, const std::vector<int64_t>& owners,
            const std::vector<at::Tensor>& tensors);

  // Whether every part of the entry can be read where it lies. The same on all ranks.
  bool can_get(size_t entry) const { return window_ != nullptr && is_readable_[entry]; }

  // The entry's whole value in `memory` on its owner, undefined on the others: all ranks call it, nobody waits.
  at::Tensor get(size_t entry, HostMemory& memory);

  // Once all ranks have what they own. Collective over the job.
  void finish();

 private:
  const catalogue::Catalogue& catalogue_;
  const std::vector<int64_t>& owners_;
  const std::unique_ptr<comm::Window> window_;
  std::vector<std::vector<int64_t>> addresses_;  // by rank and entry
  std::vector<bool> is_readable_;                // by entry
  int64_t given_ = 0;                            // bytes that others read here
};

}  // namespace tessera::checkpoint
