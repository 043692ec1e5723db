#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/rank_passes.h"

namespace tessera::schedule {
namespace {

// One rank of DualPipeV, in the eight steps in which its authors give it: forwards fill the V, the way back turns with
// split backwards, then forward and backward go in pairs, and the end is filled with weight passes.
class DualPipeVRank {
 public:
  DualPipeVRank(const Sizes& sizes, int64_t rank)
      : before_(rank + 1),
        behind_(sizes.ranks - 1 - rank),
        down_(rank),
        up_(2 * sizes.ranks - 1 - rank),
        passes_(sizes.micro_batches) {
    fill();
    for (int64_t k = 0; k < sizes.micro_batches - 2 * sizes.ranks + before_; ++k) {
      passes_.forward(down_);
      passes_.backward(up_);
      add_pair();
    }
    for (int64_t k = 0; k < behind_; ++k) {
      passes_.backward(up_);
      add_pair();
    }
    empty(rank % 2 == 1);
  }

  std::vector<Action> take() { return passes_.take(); }

 private:
  void fill() {
    for (int64_t k = 0; k < 2 * behind_; ++k) {
      passes_.forward(down_);
    }
    for (int64_t k = 0; k < before_; ++k) {
      passes_.forward(down_);
      passes_.forward(up_);
    }
    for (int64_t k = 0; k < behind_; ++k) {
      passes_.input(up_);
      passes_.weight();
      passes_.forward(up_);
    }
  }

  void add_pair() {
    passes_.forward(up_);
    passes_.backward(down_);
  }

  // From half of the way on, weight passes are left for the end; ranks take turns in which of the two stages begins.
  void empty(bool begins_up) {
    bool is_split = false;
    const auto add = [&](int64_t stage) { is_split ? passes_.input(stage) : passes_.backward(stage); };
    for (int64_t k = 0; k < before_; ++k) {
      is_split = is_split || (begins_up && k == before_ / 2);
      add(up_);
      is_split = is_split || k == before_ / 2;
      add(down_);
    }
    for (int64_t k = 0; k < behind_; ++k) {
      passes_.weight();
      add(down_);
    }
    passes_.weights();
  }

  int64_t before_, behind_;  // ranks up to this one, ranks behind it
  int64_t down_, up_;
  RankPasses passes_;
};

Schedule make_dual_pipe_v(const Sizes& sizes) {
  Schedule schedule{.rank_of_stage = v_of_stages(sizes.ranks), .micro_batches = sizes.micro_batches};
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    schedule.ranks.push_back(DualPipeVRank(sizes, rank).take());
  }
  return schedule;
}

// Two halves of the ranks do, each towards the other, what one DualPipeV of half the ranks does: where that one turns
// back, micro-batches go on to the other half, and meet those that come from there.
Schedule make_dual_pipe(const Sizes& sizes) {
  const auto ranks = sizes.ranks, half = sizes.micro_batches / 2;
  const auto folded = make_dual_pipe_v({.ranks = ranks / 2, .micro_batches = half});
  Schedule schedule{.micro_batches = sizes.micro_batches, .chains = 2};
  for (int64_t stage = 0; stage < 2 * ranks; ++stage) {
    schedule.rank_of_stage.push_back(stage < ranks ? stage : 2 * ranks - 1 - stage);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const bool is_mirrored = rank >= ranks / 2;
    std::vector<Action> actions;
    for (const Action& action : folded.ranks[static_cast<size_t>(is_mirrored ? ranks - 1 - rank : rank)]) {
      // A stage on the way down is of the chain that begins on this half.
      const auto chain = static_cast<int64_t>((action.stage >= ranks / 2) != is_mirrored);
      actions.push_back({action.kind, chain * ranks + action.stage, chain * half + action.micro_batch});
    }
    schedule.ranks.push_back(std::move(actions));
  }
  return schedule;
}

}  // namespace

std::vector<Family> dual_pipe_families() {
  return {{.name = "dualpipe-v",
           .what = "DualPipe folded into a V: forward and backward in pairs (DeepSeek-AI 2025)",
           .per_rank = 2,
           .wants = "2 micro-batches a rank or more",
           .fits = [](const Sizes& sizes) { return sizes.micro_batches >= 2 * sizes.ranks; },
           .make = make_dual_pipe_v,
           .peak = [](const Sizes& sizes) { return static_cast<double>(sizes.ranks) + 0.5; }},
          {.name = "dualpipe",
           .what = "from both ends at once, every stage held twice: to look at and to replay (DeepSeek-AI 2024)",
           .per_rank = 2,
           .wants = "an even number of ranks and an even number of micro-batches, 2 a rank or more",
           .fits =
               [](const Sizes& sizes) {
                 return sizes.ranks % 2 == 0 && sizes.micro_batches % 2 == 0 && sizes.micro_batches >= 2 * sizes.ranks;
               },
           .make = make_dual_pipe,
           .peak = [](const Sizes& sizes) { return static_cast<double>(sizes.ranks + 1); }}};
}

}  // namespace tessera::schedule
