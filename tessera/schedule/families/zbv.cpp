#include <algorithm>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/rank_passes.h"

namespace tessera::schedule {
namespace {

// One rank of a pipeline that is filled by at least 2p - 1 micro-batches.
class ZbvRank {
 public:
  ZbvRank(const Sizes& sizes, int64_t rank)
      : ranks_(sizes.ranks),
        rank_(rank),
        down_(rank),
        up_(2 * sizes.ranks - 1 - rank),
        filling_(std::max(2 * sizes.ranks - 1, sizes.micro_batches)),
        passes_(sizes.micro_batches) {}

  std::vector<Action> make() {
    fill();
    while (passes_.forwards(up_) < filling_) {
      if (passes_.forwards(down_) < filling_) {
        passes_.forward(down_);
      }
      passes_.input(down_);
      passes_.weight(down_);
      add_turn();
    }
    empty();
    return passes_.take();
  }

 private:
  // Until the first gradient comes back on the way down.
  void fill() {
    for (int64_t k = 0; k < 2 * (ranks_ - rank_) - 1; ++k) {
      passes_.forward(down_);
    }
    for (int64_t k = 0; k < rank_; ++k) {
      passes_.forward(up_);
      passes_.forward(down_);
    }
    for (int64_t k = 0; k < ranks_ - rank_; ++k) {
      add_turn();
    }
  }

  void add_turn() {
    passes_.forward(up_);
    passes_.input(up_);
    passes_.weight(up_);
  }

  // Weight passes are left for where gradients are waited for.
  void empty() {
    for (int64_t k = 0; k < rank_; ++k) {
      passes_.input(down_);
      passes_.input(up_);
    }
    for (int64_t k = 0; k < ranks_ - rank_; ++k) {
      passes_.input(down_);
      passes_.weight(down_);
    }
    for (int64_t k = 0; k < rank_; ++k) {
      passes_.weight(up_);
    }
    passes_.weights();
  }

  int64_t ranks_, rank_, down_, up_;  // the stage on the way away from rank 0, and the one on the way back
  int64_t filling_;
  RankPasses passes_;
};

Schedule make_zbv(const Sizes& sizes) {
  Schedule schedule{.rank_of_stage = v_of_stages(sizes.ranks), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    schedule.ranks.push_back(ZbvRank(sizes, rank).make());
  }
  return schedule;
}

}  // namespace

std::vector<Family> zbv_families() {
  return {{.name = "zbv",
           .what = "zero bubble in a V: no idle time between a rank's first pass and its last, for p micro-batches "
                   "(Qi et al. 2023)",
           .per_rank = 2,
           .make = make_zbv,
           .peak = [](const Sizes& sizes) { return static_cast<double>(std::min(sizes.ranks, sizes.micro_batches)); }}};
}

}  // namespace tessera::schedule
