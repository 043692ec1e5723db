// Ranks as threads of this process, and ranks that are only imagined.
#pragma once

#include <chrono>
#include <functional>

#include "tessera/comm/context.h"

namespace tessera::comm {

struct RunOptions {
  // How long a rank waits for the others in one collective.
  std::chrono::milliseconds deadline{60000};
  // Intra-op threads of each rank; 0: max(1, cores / ranks).
  int intra_op_threads = 0;
};

// Runs `body(rank)` on `ranks` threads, each with a RankContext over a shared thread group, and waits for all.
// When a rank throws, the others are woken with its error, its rank and the collective they were in; the first real error is
// thrown here, after every thread has ended. Autograd's own threads are off inside a rank.
void run_ranks(int64_t ranks, const std::function<void(int64_t rank)>& body, RunOptions options = {});

// Runs `body` on the calling thread as `rank` of an imagined job of `ranks`: collectives succeed at once and move nothing
// (outputs keep what they held). For planning, ledgers and costs on any mesh size.
void run_fake(int64_t ranks, int64_t rank, const std::function<void()>& body);

// Intra-op threads that run_ranks gives each of `ranks` ranks.
int threads_per_rank(int64_t ranks);

// Asks every rank of every running job in this process to stop at its next collective (for Ctrl-C). Async-signal-safe.
void request_stop();

}  // namespace tessera::comm
