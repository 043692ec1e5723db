// Reductions between processes, over tagged messages.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/comm/processes/c10d_messages.h"
#include "tessera/comm/sums/reduction.h"

namespace tessera::comm {

// Memory for what is on its way to be combined: grown when needed and kept, because new memory costs more than the sum.
// At most four pieces of half a MiB for each tensor of another member.
class Staging {
 public:
  // Of `bytes`, undefined content; the memory of the last call.
  at::Tensor take(int64_t bytes);

 private:
  at::Tensor memory_;
};

// Runs `reduction` as `round`: piece by piece, each combined as soon as all members' are there and then handed on,
// while later ones travel. Every message goes straight from where it is given; results, straight to where they are
// taken. Collective.
void run_reduction(const C10dMessages& messages, const Round& round, const Reduction& reduction, Staging& staging);

}  // namespace tessera::comm
