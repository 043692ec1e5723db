// How the processes of a job find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/processes/sockets.h"

namespace tessera::comm {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A rank's connection to another.
struct Link {
  Socket socket;        // none to itself
  std::string machine;  // machine_name() there
  std::string process;  // process_name() there
};

// Links this rank with every other, by rank, through addresses left in `store`.
//
// Every rank links with rank 0 before it leaves its address, so that from then on the kernel tells rank 0 when a
// process dies, however it dies; rank 0 tells the others through the store: all throw RankFailed, which names the rank,
// and rank 0 stays a second for those that have yet to hear it. When a rank throws, the others get its message in the
// same way. A rank that dies before it has reached rank 0 cannot be told from one that never started: CommTimeout,
// which names the ranks that did not come, after `deadline`. If `store` goes with rank 0, the others find their links
// to it closed, or the store's error.
//
// `check` is called every few milliseconds, and may throw. Collective over all ranks.
std::vector<Link> gather_links(const StorePtr& store, int64_t rank, int64_t size, std::chrono::milliseconds deadline,
                               const std::function<void()>& check);

// How messages say that a process (`pid 1234 on host`) is gone; `role` goes on about it.
std::string describe_lost(const std::string& process, const char* role = "");

}  // namespace tessera::comm
