#include "tessera/dtensor/state/gather_cache.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::dtensor {

void GatherCache::set_budget(int64_t bytes) {
  TESSERA_CHECK(bytes >= 0, "[gather cache] a budget of ", bytes, " bytes; accepted: at least 0");
  budget_ = bytes;
}

at::Tensor GatherCache::find_or_run(comm::RankContext& context, const MetaPtr& meta, const Move& move,
                                    const at::Tensor& part, const char* op) {
  if (at::Tensor found = meta->find_copy(slot_, move.to); found.defined()) {
    return found;
  }
  at::Tensor result = run_move(context, move, part, op);
  meta->keep_copy(slot_, move.to, result);
  // Of the largest part, so that all ranks drop the same copies.
  const int64_t most = c10::multiply_integers(move.to.largest_sizes());
  add(meta, most * result.element_size());
  return result;
}

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
  while (entries_.size() > 1 && bytes_ > budget_) {
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
    alive->rare.get()->*slot_ = {};
  }
}

}  // namespace tessera::dtensor
