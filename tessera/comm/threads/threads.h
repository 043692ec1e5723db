// Ranks as threads of this process: collectives read the peers' memory directly.
#pragma once

#include <memory>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/threads/thread_group.h"

namespace tessera::comm {

// The communicator of `rank` over all ranks of `job`; each rank calls it once. CPU tensors only. Collectives are
// complete when issued; a receive completes in its wait.
std::shared_ptr<Communicator> join_threads(const std::shared_ptr<ThreadJob>& job, int64_t rank);

}  // namespace tessera::comm
