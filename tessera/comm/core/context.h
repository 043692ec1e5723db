// Who this thread is: its rank, its communicators, and the program it has run so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/comm/core/communicator.h"
#include "tessera/comm/core/program.h"
#include "tessera/comm/core/watcher.h"
#include "tessera/layout/mesh.h"
#include "tessera/trace/ledger.h"

namespace tessera::comm {

// What a backward pass leaves for later of what makes gradients of parameters.
enum class PutsOff : uint8_t {
  kNothing,
  kSums,     // what its kernel may add to a sum: until that is at hand
  kWeights,  // all of it: until the pass's weight half
};

// Which part of its program a rank runs out of the others' order: the passes over one micro-batch in a pipeline's
// schedule. Outside of one, its program as it stands.
struct Walk {
  static constexpr int64_t kAllStages = -1;

  bool is_scheduled = false;   // ranks that have other stages are elsewhere in the program
  int64_t micro_batch = 0;     // what the stages' messages belong to
  int64_t stage = kAllStages;  // of this rank's stages the one that runs
  std::string axis = {};       // whose stages they are
  PutsOff puts_off = PutsOff::kNothing;
  bool keeps_books = true;  // it notes what other ranks do: of the walks over a micro-batch one of this rank's does

  // Whether what a place of this rank on an axis has takes part.
  bool runs(std::string_view on_axis, const layout::Placement& place) const {
    return stage == kAllStages || !place.is_on() || place.stage == stage || on_axis != axis;
  }
};

// What stages of one rank say to each other: their passes run one after the other.
class OwnMessages {
 public:
  void keep(int64_t tag, at::Tensor part) {
    parts_[tag].push_back(std::move(part));
    ++kept_;
  }
  // The oldest of this tag. Throws if there is none.
  at::Tensor take(int64_t tag);
  void clear() { parts_.clear(); }
  // How many were kept so far, in all.
  int64_t kept() const { return kept_; }

 private:
  int64_t kept_ = 0;
  std::unordered_map<int64_t, std::deque<at::Tensor>> parts_;
};

// One rank of a job: made by run_ranks (or by a launcher), found from any thread that works for the rank.
//
// The pointer lives in a thread_local for speed and in libtorch's thread-local snapshot besides, so that it survives
// re-entrant backward on a pool thread (where `current` reads the snapshot). Work that a rank hands to other threads
// must end before the rank does.
class RankContext {
 public:
  RankContext();
  virtual ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  // A number that no other context of this process has had.
  const uint64_t id;
  int64_t rank = 0;
  int64_t world_size = 1;
  std::shared_ptr<Communicator> world;
  Program program;
  // Whether this rank's program rides on its collectives. Off where ranks run different programs on purpose.
  bool compare_programs = true;
  // The op that runs now, for messages and watchers; see Caller.
  const char* current_op = "";
  Walk walk;
  OwnMessages own_messages;
  // Runs of schedules that began.
  int64_t schedules = 0;
  // Runs of schedules that ended by an exception: what they sent is not received by later ones.
  int64_t broken_schedules = 0;
  trace::Ledger ledger;
  // Collectives and messages of this rank to others.
  int64_t calls = 0;
  // ... and with those to itself.
  int64_t all_messages() const { return calls + own_messages.kept(); }
  std::chrono::milliseconds deadline{60000};
  // request_stop calls before the job began: a later one stops it.
  uint64_t stops_before = 0;
  // Observers of this rank's collectives.
  std::vector<std::shared_ptr<Watcher>> watchers;

  // The position of this rank on `mesh`, cached. Throws if the mesh does not contain it.
  const layout::Coord& coord(const layout::Mesh& mesh);

  // The communicator of `axis` of `mesh` that contains this rank, made at first use, named as the axis.
  // Collective at first use over the ranks of that line of the mesh: each of them must ask for it, in the same order as
  // for other lines of the same ranks. Other ranks take no part.
  Communicator& axis(const layout::Mesh& mesh, int64_t axis);

  // The communicator over all ranks of `mesh` (for transitions that no single axis serves). Collective over them at
  // first use.
  Communicator& whole(const layout::Mesh& mesh);

  // Anything other floors keep per rank (plan caches and the like), by key; dies with the context.
  std::shared_ptr<void>& slot(const void* key);

  // Calls `tell` with each watcher; one that throws is dropped.
  void tell(const std::function<void(Watcher&)>& tell);

  // The context of the calling thread; null outside of a rank.
  static RankContext* current();
  // The same; throws with what to do about it.
  static RankContext& require();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Names the op that the calling rank's collectives serve, for a scope. `op` must outlive the scope.
class Caller {
 public:
  Caller(RankContext& context, const char* op) : context_(context), previous_(context.current_op) {
    context.current_op = op;
  }
  ~Caller() { context_.current_op = previous_; }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

 private:
  RankContext& context_;
  const char* previous_;
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

// Throws Stopped if request_stop came after the calling rank's job began: for loops of ranks that may have no
// collective. Nothing outside of a rank.
void throw_if_stopped();

}  // namespace tessera::comm
