#include <algorithm>

#include "tessera/schedule/families/family.h"

namespace tessera::schedule {
namespace {

// Micro-batches go through a rank's stages in groups of p: the group through the first stage, then through the second.
class Groups {
 public:
  explicit Groups(const Sizes& sizes) : ranks_(sizes.ranks), per_rank_(sizes.per_rank) {}

  // The i-th forward or backward of a rank; backwards take the stages from behind.
  Action action(ActionKind kind, int64_t rank, int64_t i) const {
    const auto group = i / (ranks_ * per_rank_), within = i % (ranks_ * per_rank_);
    const auto turn = within / ranks_;
    const auto chunk = kind == ActionKind::kForward ? turn : per_rank_ - 1 - turn;
    return {kind, chunk * ranks_ + rank, group * ranks_ + within % ranks_};
  }

  // Forwards of a rank before its first backward, but the one that stands right before it.
  int64_t first_forwards(int64_t rank) const {
    return per_rank_ == 1 ? ranks_ - 1 - rank : 2 * (ranks_ - 1 - rank) + (per_rank_ - 1) * ranks_;
  }

 private:
  int64_t ranks_, per_rank_;
};

Schedule make_interleaved(const Sizes& sizes) {
  const Groups groups(sizes);
  // The last group may be short: it is made whole, and what there is not is left out.
  const auto all = (sizes.micro_batches + sizes.ranks - 1) / sizes.ranks * sizes.ranks * sizes.per_rank;
  Schedule schedule{.rank_of_stage = loop_of_stages(sizes.ranks, sizes.per_rank), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    std::vector<Action> actions;
    const auto add = [&](ActionKind kind, int64_t i) {
      const auto action = groups.action(kind, rank, i);
      if (i < all && action.micro_batch < sizes.micro_batches) {
        actions.push_back(action);
      }
    };
    const auto first = std::min(all, groups.first_forwards(rank));
    for (int64_t i = 0; i < first; ++i) {
      add(ActionKind::kForward, i);
    }
    for (int64_t i = 0; i < all; ++i) {
      add(ActionKind::kForward, first + i);
      add(ActionKind::kBackward, i);
    }
    schedule.ranks.push_back(std::move(actions));
  }
  return schedule;
}

double interleaved_peak(const Sizes& sizes) {
  const auto held = static_cast<double>(Groups(sizes).first_forwards(0) + 1) / static_cast<double>(sizes.per_rank);
  return std::min(held, static_cast<double>(sizes.micro_batches));
}

}  // namespace

std::vector<Family> interleaved_families() {
  return {{.name = "interleaved",
           .what = "1f1b over several stages a rank, in a loop: 1/v of its idle time (Narayanan et al. 2021)",
           .per_rank = 2,
           .takes_per_rank = true,
           .make = make_interleaved,
           .peak = interleaved_peak}};
}

}  // namespace tessera::schedule
