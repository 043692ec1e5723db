#include "tessera/comm/core/context.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/comm/core/stop.h"

namespace tessera::comm {
namespace {

thread_local RankContext* this_thread = nullptr;

// What libtorch's thread-local snapshot carries. The slot is one that torch leaves to tests.
struct ContextInfo : c10::DebugInfoBase {
  explicit ContextInfo(RankContext* context) : context(context) {}
  RankContext* context;
};
const auto kSlot = c10::DebugInfoKind::TEST_INFO_2;

uint64_t next_context_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

struct RankContext::State {
  std::unordered_map<const void*, layout::Coord> coords;                           // by mesh
  std::map<std::pair<const void*, int64_t>, std::shared_ptr<Communicator>> lines;  // by mesh and axis
  std::unordered_map<const void*, std::shared_ptr<Communicator>> wholes;           // by mesh
  std::unordered_map<const void*, std::shared_ptr<void>> slots;
};

at::Tensor OwnMessages::take(int64_t tag) {
  const auto found = parts_.find(tag);
  TESSERA_CHECK(
      found != parts_.end() && !found->second.empty(),
      "[job] a pass of one of this rank's stages reads what only a later pass of another one makes: the program "
      "sends values back and forth between stages, which a schedule that gives ranks several stages has no "
      "place for. Accepted: one stage a rank (1f1b, zb-h1), or no schedule. (tag ",
      tag, ")");
  at::Tensor part = std::move(found->second.front());
  found->second.pop_front();
  return part;
}

RankContext::RankContext() : id(next_context_id()), state_(std::make_unique<State>()) {}

RankContext::~RankContext() = default;

const layout::Coord& RankContext::coord(const layout::Mesh& mesh) {
  const auto it = state_->coords.find(mesh.id());
  if (it != state_->coords.end()) {
    return it->second;
  }
  auto coord = mesh.coord_of(rank);
  TESSERA_CHECK(coord, "[mesh] rank ", rank, " of ", world_size, " is not on mesh {", mesh.str(),
                "}; only the ranks of a mesh can use its tensors: start ", mesh.size(), " ranks, or give a mesh of ",
                world_size);
  const auto& members = mesh.ranks();
  const auto last = *std::max_element(members.begin(), members.end());
  TESSERA_CHECK(last < world_size, "[mesh] mesh {", mesh.str(), "} needs ranks 0 to ", last, ", this job has ",
                world_size, "; start ", mesh.size(), " ranks, or give a mesh of ", world_size);
  return state_->coords.emplace(mesh.id(), std::move(*coord)).first->second;
}

Communicator& RankContext::axis(const layout::Mesh& mesh, int64_t axis) {
  auto& line = state_->lines[{mesh.id(), axis}];
  if (!line) {
    line = world->split({mesh.line(axis, coord(mesh))}, mesh.axis(axis).name);
  }
  return *line;
}

Communicator& RankContext::whole(const layout::Mesh& mesh) {
  auto& whole = state_->wholes[mesh.id()];
  if (!whole) {
    coord(mesh);
    whole = mesh.ranks() == world->ranks() ? world : world->split({mesh.ranks()}, mesh.str());
  }
  return *whole;
}

std::shared_ptr<void>& RankContext::slot(const void* key) { return state_->slots[key]; }

void RankContext::tell(const std::function<void(Watcher&)>& tell) {
  for (size_t i = 0; i < watchers.size();) {
    try {
      tell(*watchers[i]);
      ++i;
    } catch (...) {
      watchers.erase(watchers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

RankContext* RankContext::current() {
  if (this_thread) {
    return this_thread;
  }
  // A pool thread: it works for one rank now and for another next, so nothing is kept.
  const auto* info = static_cast<ContextInfo*>(c10::ThreadLocalDebugInfo::get(kSlot));
  return info ? info->context : nullptr;
}

RankContext& RankContext::require() {
  auto* context = current();
  TESSERA_CHECK(context, "[comm] this thread works for no rank; call from inside of run_ranks",
                base::in_language(", or pass on the rank's at::ThreadLocalState to a thread of your own",
                                  ", on the thread that it started, or start the program by torchrun"));
  return *context;
}

ContextGuard::ContextGuard(RankContext* context) : previous_(this_thread) {
  snapshot_ = std::make_shared<c10::DebugInfoGuard>(kSlot, std::make_shared<ContextInfo>(context));
  this_thread = context;
}

ContextGuard::~ContextGuard() { this_thread = previous_; }

void throw_if_stopped() {
  const auto* context = RankContext::current();
  if (context) {
    throw_if_stopped_since(context->stops_before);
  }
}

}  // namespace tessera::comm
