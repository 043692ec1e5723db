#include <algorithm>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/families/timeline.h"
#include "tessera/schedule/vocabulary.h"

namespace tessera::schedule {
namespace {

// The block of one rank.
Block v_half_block(int64_t ranks, int64_t rank) {
  const int64_t gap = ranks % 2 == 0 ? 3 : 0;
  return {2 * rank, 3 * ranks - rank - 2, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - rank - 2};
}

Block v_min_block(int64_t ranks, int64_t rank) {
  const int64_t gap = ranks % 3 == 0 ? 2 : 0;
  return {rank, 2 * ranks - rank - 1, 2 * ranks + gap + rank, 4 * ranks + gap - rank - 1};
}

// Forwards go down the V and up without a pause, backwards of two slots each do. Every third one waits three slots, so
// that down and up do not fall on the same ones.
std::vector<Block> one_f_one_b_blocks(int64_t ranks) {
  std::vector<Block> blocks(static_cast<size_t>(ranks));
  int64_t slot = 2 * ranks + (ranks % 3 == 0 ? 3 : 0);
  int64_t since_pause = (2 * ranks + 1) % 3;
  for (int64_t i = 0; i < 2 * ranks; ++i) {
    const auto rank = std::min(i, 2 * ranks - 1 - i);
    auto& block = blocks[static_cast<size_t>(rank)];
    block[0] = rank;
    block[1] = 2 * ranks - 1 - rank;
    block[i < ranks ? 2 : 3] = slot;
    slot += 2;
    if (++since_pause == 3) {
      since_pause = 0;
      slot += 3;
    }
  }
  return blocks;
}

Schedule make_of_blocks(const Sizes& sizes, Block (*block_of)(int64_t ranks, int64_t rank)) {
  std::vector<Block> blocks;
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    auto& block = blocks.emplace_back(block_of(sizes.ranks, rank));
    block[2] += kBlockSlots * sizes.barriers;
    block[3] += kBlockSlots * sizes.barriers;
  }
  Timeline timeline(blocks, sizes.micro_batches, Timeline::Weights::kApart);
  timeline.place_weights();
  timeline.compact(Timeline::Part::kEnds);
  timeline.squeeze();
  timeline.drop_weights();
  timeline.compact(Timeline::Part::kEnd);
  timeline.place_weights();
  return sizes.barriers == 0 ? timeline.schedule() : add_vocabulary(timeline.schedule(), sizes.barriers);
}

Schedule make_one_f_one_b_v(const Sizes& sizes) {
  Timeline timeline(one_f_one_b_blocks(sizes.ranks), sizes.micro_batches, Timeline::Weights::kWithInput);
  timeline.compact(Timeline::Part::kAll);
  return timeline.schedule();
}

double at_most(int64_t peak, const Sizes& sizes) { return static_cast<double>(std::min(peak, sizes.micro_batches)); }

}  // namespace

std::vector<Family> v_blocks_families() {
  return {{.name = "1f1b-v",
           .what = "1f1b in a V with whole backwards: two thirds of 1f1b's memory (Qi et al. 2024)",
           .per_rank = 2,
           .make = make_one_f_one_b_v,
           .peak = [](const Sizes& sizes) { return at_most(2 * sizes.ranks / 3 + 1, sizes); }},
          {.name = "v-half",
           .what = "in a V, half of 1f1b's memory on every rank and a third of its idle time (Qi et al. 2024)",
           .per_rank = 2,
           .takes_barriers = true,
           .make = [](const Sizes& sizes) { return make_of_blocks(sizes, v_half_block); },
           .peak = [](const Sizes& sizes) { return at_most(sizes.ranks / 2 + 1 + sizes.barriers, sizes); }},
          {.name = "v-min",
           .what = "in a V, a third of 1f1b's memory on every rank (Qi et al. 2024)",
           .per_rank = 2,
           .make = [](const Sizes& sizes) { return make_of_blocks(sizes, v_min_block); },
           .peak = [](const Sizes& sizes) { return at_most((sizes.ranks + 4) / 3, sizes); }}};
}

}  // namespace tessera::schedule
