#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/rank_passes.h"

namespace tessera::schedule {
namespace {

Schedule make_gpipe(const Sizes& sizes) {
  Schedule schedule{.rank_of_stage = loop_of_stages(sizes.ranks, 1), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    RankPasses passes(sizes.micro_batches);
    for (int64_t k = 0; k < sizes.micro_batches; ++k) {
      passes.forward(rank);
    }
    for (int64_t k = 0; k < sizes.micro_batches; ++k) {
      passes.backward(rank);
    }
    schedule.ranks.push_back(passes.take());
  }
  return schedule;
}

}  // namespace

std::vector<Family> gpipe_families() {
  return {{.name = "gpipe",
           .what = "all forwards, then all backwards (Huang et al. 2019)",
           .make = make_gpipe,
           .peak = [](const Sizes& sizes) { return static_cast<double>(sizes.micro_batches); }}};
}

}  // namespace tessera::schedule
