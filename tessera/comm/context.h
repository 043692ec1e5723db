// Who this thread is: its rank, its communicators, and the program it has run so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/comm/communicator.h"
#include "tessera/layout/mesh.h"
#include "tessera/trace/ledger.h"

namespace tessera::comm {

// What a rank has executed: a running hash over (op, layouts), and the last op's name. It rides on every collective, so that
// ranks that run different programs are told so by both ops' names.
struct Program {
  uint64_t hash = 0;
  uint64_t count = 0;
  // The last ops, newest at (count - 1) % kKept, for finding where two ranks parted.
  static constexpr size_t kKept = 64;
  struct Entry { uint64_t hash = 0; const char* op = ""; const void* detail = nullptr; };
  Entry last[kKept];

  // `op` must outlive the program (an interned operator name).
  void note(const char* op, uint64_t key, const void* detail = nullptr) {
    hash = (hash ^ key) * 0x9E3779B97F4A7C15ull;
    last[count++ % kKept] = {hash, op, detail};
  }
};

// One rank of a job: made by run_ranks (or by a launcher), found from any thread that works for the rank.
//
// The pointer lives in a thread_local for speed and in libtorch's thread-local snapshot besides, so that it survives
// re-entrant backward on a pool thread (`current` repairs the thread_local from the snapshot).
class RankContext {
 public:
  virtual ~RankContext() = default;

  int64_t rank = 0;
  int64_t world_size = 1;
  std::shared_ptr<Communicator> world;
  Program program;
  trace::Ledger ledger;
  std::chrono::milliseconds deadline{60000};

  // The position of this rank on `mesh`, cached. Throws if the mesh does not contain it.
  const layout::Coord& coord(const layout::Mesh& mesh);

  // The communicator of `axis` of `mesh` that contains this rank, made at first use.
  // Collective over the mesh at first use: every rank of the mesh must ask for the same axis.
  Communicator& axis(const layout::Mesh& mesh, int64_t axis);

  // The communicator over all ranks of `mesh` (for transitions that no single axis serves).
  Communicator& whole(const layout::Mesh& mesh);

  // Anything other floors keep per rank (plan caches and the like), by key; dies with the context.
  std::shared_ptr<void>& slot(const void* key);

  // The context of the calling thread; null outside of a rank.
  static RankContext* current();
  // The same; throws with what to do about it.
  static RankContext& require();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Makes `context` the calling thread's for a scope (and for the autograd threads that work on its behalf).
class ContextGuard {
 public:
  explicit ContextGuard(RankContext* context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  RankContext* previous_;
  std::shared_ptr<void> snapshot_;
};

}  // namespace tessera::comm
