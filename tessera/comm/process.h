// Runs this process as one rank of a job of processes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/comm/process_job.h"

namespace tessera::comm {

// Which rank this process is, and where the others meet it. launch::find_place reads it from a launcher's environment.
struct Place {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_size = 1;             // ranks of this job on this machine
  std::string host = "127.0.0.1";     // of the store
  int port = 0;
  bool store_is_served = false;       // by the launcher; else rank 0 serves it
  int store_socket = -1;              // one that already listens on `port`, for rank 0; -1: none
  std::string attempt;                // keeps restarts of one job apart where the store outlives them
  std::string launcher;               // for messages
};

// Runs `body(rank)` in a job of place.size processes, on the calling thread, with a RankContext whose world is Gloo over all of
// them; everything else is as in run_ranks: hooks, intra-op threads, autograd on this thread, grad mode of the caller.
//
// Every process of the job calls it, with the same options. When the body throws, the other ranks are woken with its error,
// and it is thrown here with the rank before its message; when another rank threw or died, RankFailed, CommTimeout or
// DivergenceError say which and where this one was. Returns when all ranks are done. While it connects, it may leave threads
// behind that wait inside the libraries: end the process soon after an error. Ignores SIGPIPE from then on.
void run_process(const Place& place, const std::function<void(int64_t rank)>& body, const ProcessOptions& options = {});

}  // namespace tessera::comm
