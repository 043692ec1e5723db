// Ranks as threads of this process, and ranks that are only imagined.
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "tessera/comm/core/context.h"
#include "tessera/comm/core/stop.h"

namespace tessera::comm {

// More threads than this are a mistake that would take the machine down.
inline constexpr int64_t kMostRanks = 4096;

struct RunOptions {
  // How long a rank waits for the others in one collective.
  std::chrono::milliseconds deadline{60000};
  // Intra-op threads of each rank, at most OMP_THREAD_LIMIT; 0: max(1, cores / ranks).
  int intra_op_threads = 0;
  // Whether ranks compare the programs they have run (Program) on every collective.
  bool compare_programs = true;
  // How long ranks may go on once one has failed or the job was asked to stop. One that has not come back by then is in
  // a call that hears of nothing, and the process ends: stderr gets the first error and who is where. Zero: they are
  // waited for.
  std::chrono::milliseconds grace{60000};
  // Says for that message, in a language front's words, which ranks still run and where: `rank 1 (train.py:12, in
  // load)`. Empty: by collectives and operators.
  std::function<std::string()> where = {};
};

// Runs `body(rank)` on `ranks` threads (1 to kMostRanks), each with a RankContext over a shared thread group, and waits
// for all. When a rank throws, the others are woken with its error, its rank and the collective they were in; the first
// real error is thrown here, after every thread has ended (or the process, RunOptions::grace), its message prefixed
// with its rank (a type that cannot be made from a message passes unchanged). Each rank starts with the caller's
// libtorch thread-local state (grad mode, autocast); autograd's own threads are off inside a rank. A rank cannot start
// ranks.
void run_ranks(int64_t ranks, const std::function<void(int64_t rank)>& body, RunOptions options = {});

// The same for a body that does not ask for its rank, such as a one-device program's; returns what it returned on rank
// 0.
template <std::invocable Body>
std::invoke_result_t<Body&> run_ranks(int64_t ranks, Body&& body, RunOptions options = {}) {
  using Result = std::invoke_result_t<Body&>;
  using OfRank = std::function<void(int64_t)>;
  if constexpr (std::is_void_v<Result>) {
    run_ranks(ranks, OfRank([&](int64_t) { body(); }), options);
  } else {
    std::optional<Result> result;
    run_ranks(ranks, OfRank([&](int64_t rank) {
                Result own = body();
                if (rank == 0) {
                  result.emplace(std::move(own));
                }
              }),
              options);
    return *std::move(result);
  }
}

// Runs `body` on the calling thread as `rank` of an imagined job of `ranks`: collectives succeed at once and move
// nothing (outputs keep what they held). For planning, ledgers and costs on any mesh size.
void run_fake(int64_t ranks, int64_t rank, const std::function<void()>& body);

// Intra-op threads that run_ranks gives each of `ranks` ranks: its share of the cores, at most OMP_THREAD_LIMIT.
int threads_per_rank(int64_t ranks);

}  // namespace tessera::comm
