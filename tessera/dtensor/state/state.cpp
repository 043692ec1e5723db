#include "tessera/dtensor/state/state.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::dtensor {

void GatherCache::add(const MetaPtr& meta, int64_t bytes) {
  std::erase_if(entries_, [&](const Entry& entry) {  // its earlier copy is gone already
    if (entry.tensor != meta.get()) {
      return false;
    }
    bytes_ -= entry.bytes;
    return true;
  });
  entries_.push_back({meta.get(), c10::weak_intrusive_ptr<Meta>(meta), bytes});
  bytes_ += bytes;
  while (entries_.size() > 1 && bytes_ > budget) {
    drop_oldest();
  }
}

void GatherCache::clear() {
  while (!entries_.empty()) {
    drop_oldest();
  }
}

void GatherCache::drop_oldest() {
  const Entry oldest = std::move(entries_.front());
  entries_.pop_front();
  bytes_ -= oldest.bytes;
  if (const MetaPtr alive = oldest.meta.lock(); alive && alive->rare) {
    alive->rare->gathered = at::Tensor();
    alive->rare->gathered_spec = Spec();
  }
}

RankState* RankState::current() {
  struct Known {
    comm::RankContext* ctx;
    RankState* state;
    uint64_t id;
  };
  static thread_local Known known;
  comm::RankContext* ctx = comm::RankContext::current();
  if (C10_LIKELY(ctx == known.ctx && ctx && ctx->id == known.id)) {
    return known.state;
  }
  if (!ctx) {
    return nullptr;
  }
  static const char kSlot = 0;
  std::shared_ptr<void>& slot = ctx->slot(&kSlot);
  if (!slot) {
    slot = std::make_shared<RankState>(*ctx);
  }
  known = {ctx, static_cast<RankState*>(slot.get()), ctx->id};
  return known.state;
}

RankState& RankState::require() {
  comm::RankContext::require();
  return *current();
}

Mode RankState::set_mode(Mode mode) {
  set_flag(kAsksForMoves, mode != Mode::kImplicit);
  return std::exchange(mode_, mode);
}

bool RankState::set_checks_plain(bool on) {
  const bool before = checks_plain();
  set_flag(kChecksPlain, on);
  return before;
}

void RankState::set_lattice(std::optional<sums::Lattice> lattice) {
  set_flag(kExact, lattice.has_value());
  lattice_ = lattice;
}

OpObserver* RankState::set_observer(OpObserver* observer) {
  set_flag(kObserved, observer != nullptr);
  return std::exchange(observer_, observer);
}

uint64_t Sites::use(bool reads_parameter) {
  const uint64_t site = position_.parameter ? position_.parameter->site : base::hash_string("start");
  return base::hash_combine(base::hash_combine(site, position_.reading), reads_parameter ? 0 : ++position_.calls);
}

Sites::NodeCalls& Sites::calls_of(uint64_t node) {
  if (node_calls_.node != node) {
    node_calls_ = {node};
  }
  return node_calls_;
}

uint64_t Sites::number_of(int graph_task) {
  auto found = std::find(graph_tasks_.begin(), graph_tasks_.end(), graph_task);
  if (found == graph_tasks_.end()) {
    found = graph_tasks_.insert(found, graph_task);
  }
  return static_cast<uint64_t>(found - graph_tasks_.begin());
}

uint64_t Sites::use_of_sum(uint64_t use, int graph_task, uint64_t node) {
  return base::hash_combine(base::hash_combine(use, number_of(graph_task)), ++calls_of(node).sums);
}

uint64_t Sites::use_in_backward(uint64_t use, int graph_task, uint64_t node) {
  return base::hash_combine(base::hash_combine(use, number_of(graph_task) + 1000), ++calls_of(node).others);
}

random::Stream Sites::next() {
  // Equal to the hash of (name, reading, draw): the name's own hash is the parameter's site.
  uint64_t site = position_.parameter ? position_.parameter->site : base::hash_string("start");
  site = base::hash_combine(base::hash_combine(site, position_.reading), position_.draws++);
  if (evaluation > 0) {
    site = base::hash_combine(site, evaluation);
  }
  return {seed, site, step};
}

}  // namespace tessera::dtensor
