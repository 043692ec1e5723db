#include <algorithm>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/rank_passes.h"
#include "tessera/schedule/passes.h"
#include "tessera/schedule/vocabulary.h"

namespace tessera::schedule {
namespace {

Schedule make_one_f_one_b(const Sizes& sizes) {
  Schedule schedule{.rank_of_stage = loop_of_stages(sizes.ranks, 1), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    RankPasses passes(sizes.micro_batches);
    for (int64_t k = 0; k < sizes.ranks - 1 - rank + sizes.barriers; ++k) {
      passes.forward(rank);
    }
    for (int64_t k = 0; k < sizes.micro_batches; ++k) {
      passes.forward(rank);
      passes.backward(rank);
    }
    schedule.ranks.push_back(passes.take());
  }
  return sizes.barriers == 0 ? schedule : add_vocabulary(split_backward(schedule), sizes.barriers);
}

}  // namespace

std::vector<Family> one_f_one_b_families() {
  return {{.name = "1f1b",
           .what = "one forward, one backward: rank r holds at most p - r micro-batches (Narayanan et al. 2021)",
           .takes_barriers = true,
           .make = make_one_f_one_b,
           .peak = [](const Sizes& sizes) {
             return static_cast<double>(std::min(sizes.ranks + sizes.barriers, sizes.micro_batches));
           }}};
}

}  // namespace tessera::schedule
