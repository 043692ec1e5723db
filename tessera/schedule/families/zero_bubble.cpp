#include <algorithm>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/rank_passes.h"

namespace tessera::schedule {
namespace {

// 1F1B with weight passes that come `late` inputs after their own, which fills what would be idle behind the first
// backwards: rank r runs `first` forwards before them.
std::vector<Action> make_late(int64_t rank, int64_t first, int64_t late, int64_t micro_batches) {
  RankPasses passes(micro_batches);
  for (int64_t k = 0; k < first; ++k) {
    passes.forward(rank);
  }
  for (int64_t k = 0; k < micro_batches; ++k) {
    passes.input(rank);
    if (k >= late) {
      passes.weight(rank);
    }
    passes.forward(rank);
  }
  passes.weights();
  return passes.take();
}

Schedule make_zero_bubble(const Sizes& sizes, int64_t steepness) {
  Schedule schedule{.rank_of_stage = loop_of_stages(sizes.ranks, 1), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    const auto first = 1 + steepness * (sizes.ranks - 1 - rank);
    schedule.ranks.push_back(make_late(rank, first, steepness * rank, sizes.micro_batches));
  }
  return schedule;
}

}  // namespace

std::vector<Family> zero_bubble_families() {
  return {
      {.name = "zb-h1",
       .what = "1f1b with late weight passes: a third of its idle time, p micro-batches on every rank (Qi et al. 2023)",
       .make = [](const Sizes& sizes) { return make_zero_bubble(sizes, 1); },
       .peak = [](const Sizes& sizes) { return static_cast<double>(std::min(sizes.ranks, sizes.micro_batches)); }},
      {.name = "zb-h2",
       .what = "no idle time between a rank's first pass and its last, for 2p - 1 micro-batches (Qi et al. 2023)",
       .make = [](const Sizes& sizes) { return make_zero_bubble(sizes, 2); },
       .peak =
           [](const Sizes& sizes) { return static_cast<double>(std::min(2 * sizes.ranks - 1, sizes.micro_batches)); }}};
}

}  // namespace tessera::schedule
