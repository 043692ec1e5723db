#include "tessera/schedule/families/rank_passes.h"

#include <algorithm>

namespace tessera::schedule {

void RankPasses::forward(int64_t stage) { add(ActionKind::kForward, stage, forwards_[stage]++); }

void RankPasses::backward(int64_t stage) { add(ActionKind::kBackward, stage, backwards_[stage]++); }

void RankPasses::input(int64_t stage) {
  waiting_.emplace_back(stage, backwards_[stage]);
  add(ActionKind::kInput, stage, backwards_[stage]++);
}

void RankPasses::weight(int64_t stage) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [stage](const auto& one) { return one.first == stage; });
  if (found != waiting_.end()) {
    const auto micro_batch = found->second;
    waiting_.erase(found);
    add(ActionKind::kWeight, stage, micro_batch);
  }
}

void RankPasses::weights() {
  while (!waiting_.empty()) {
    weight();
  }
}

void RankPasses::weight() {
  if (!waiting_.empty()) {
    weight(waiting_.front().first);
  }
}

void RankPasses::add(ActionKind kind, int64_t stage, int64_t micro_batch) {
  if (micro_batch < micro_batches_) {
    actions_.push_back({kind, stage, micro_batch});
  }
}

}  // namespace tessera::schedule
