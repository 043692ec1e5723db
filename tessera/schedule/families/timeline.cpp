#include "tessera/schedule/families/timeline.h"

#include <algorithm>
#include <deque>

namespace tessera::schedule {

Timeline::Timeline(const std::vector<Block>& blocks, int64_t micro_batches, Weights weights)
    : weights_(weights), micro_batches_(micro_batches), ranks_(blocks.size()) {
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    for (size_t row = 0; row < kWeightRow; ++row) {
      for (int64_t k = 0; k < micro_batches; ++k) {
        ranks_[rank][row].push_back(blocks[rank][row] + kBlockSlots * k);
      }
    }
  }
}

std::vector<Timeline::Pass> Timeline::passes_of(int64_t rank) const {
  std::vector<Pass> passes;
  for (size_t row = 0; row < rows(rank).size(); ++row) {
    for (size_t k = 0; k < rows(rank)[row].size(); ++k) {
      passes.push_back({rows(rank)[row][k], rank, row, k});
    }
  }
  std::sort(passes.begin(), passes.end());
  return passes;
}

std::vector<Timeline::Pass> Timeline::all_passes() const {
  std::vector<Pass> passes;
  for (int64_t rank = 0; rank < num_ranks(); ++rank) {
    const auto more = passes_of(rank);
    passes.insert(passes.end(), more.begin(), more.end());
  }
  std::sort(passes.begin(), passes.end());
  return passes;
}

int64_t Timeline::end_of_need(const Pass& pass) const {
  if (pass.row == kWeightRow) {  // the inputs in their order: it is that of the same index
    std::vector<int64_t> inputs = rows(pass.rank)[2];
    inputs.insert(inputs.end(), rows(pass.rank)[3].begin(), rows(pass.rank)[3].end());
    std::nth_element(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(pass.index), inputs.end());
    return inputs[pass.index] + 1;
  }
  const bool is_away = pass.row % 2 == 0;  // from rank 0
  const auto neighbour = is_away ? pass.rank - 1 : pass.rank + 1;
  if (neighbour >= 0 && neighbour < num_ranks()) {
    return rows(neighbour)[pass.row][pass.index] + length(pass.row);
  }
  return pass.row == 0 ? 0 : rows(pass.rank)[pass.row - 1][pass.index] + length(pass.row - 1);
}

std::vector<int64_t> Timeline::weight_slots(const Rows& rows) const {
  std::vector<std::pair<int64_t, bool>> taken;  // slots in order, and whether by an input
  for (size_t row = 0; row < kWeightRow; ++row) {
    for (const int64_t slot : rows[row]) {
      taken.emplace_back(slot, row >= 2);
    }
  }
  std::sort(taken.begin(), taken.end());
  std::vector<int64_t> slots;
  int64_t waiting = 0, now = 0;
  for (const auto& [slot, is_input] : taken) {
    for (; now < slot && waiting > 0; ++now, --waiting) {
      slots.push_back(now);
    }
    now = slot + 1;
    waiting += is_input ? 1 : 0;
  }
  for (; waiting > 0; --waiting) {
    slots.push_back(now++);
  }
  return slots;
}

int64_t Timeline::peak_of(const Rows& rows) const {
  std::vector<std::pair<int64_t, int64_t>> changes;  // when, by how much
  for (size_t row = 0; row < 2; ++row) {
    for (const int64_t slot : rows[row]) {
      changes.emplace_back(slot, 1);
    }
  }
  if (weights_ == Weights::kWithInput) {
    for (size_t row = 2; row < kWeightRow; ++row) {
      for (const int64_t slot : rows[row]) {
        changes.emplace_back(slot + 2, -1);
      }
    }
  } else {
    for (const int64_t slot : rows[kWeightRow].empty() ? weight_slots(rows) : rows[kWeightRow]) {
      changes.emplace_back(slot, -1);
    }
  }
  std::sort(changes.begin(), changes.end());
  int64_t held = 0, peak = 0;
  for (const auto& [slot, change] : changes) {
    held += change;
    peak = std::max(peak, held);
  }
  return peak;
}

int64_t Timeline::first_fit(Pass pass, int64_t most, const std::set<int64_t>& taken) {
  auto& of_row = rows(pass.rank)[pass.row];
  auto from = end_of_need(pass);
  if (pass.index > 0) {
    from = std::max(from, of_row[pass.index - 1] + length(pass.row));
  }
  for (int64_t slot = from; slot < pass.slot; ++slot) {
    if (taken.count(slot) != 0 || (length(pass.row) == 2 && taken.count(slot + 1) != 0)) {
      continue;
    }
    of_row[pass.index] = slot;
    const bool fits = peak_of(rows(pass.rank)) <= most;
    of_row[pass.index] = pass.slot;
    if (fits) {
      return slot;
    }
  }
  return pass.slot;
}

void Timeline::compact(Part part) {
  int64_t most = 0;
  for (const Rows& of_rank : ranks_) {
    most = std::max(most, peak_of(of_rank));
  }
  const auto begin = rows(0)[3].front(), end = rows(0)[0].back();
  std::vector<std::set<int64_t>> taken(ranks_.size());
  for (const Pass& pass : all_passes()) {
    const bool is_at_end = pass.slot > end || (pass.slot == end && pass.rank > 0);
    const bool moves = part == Part::kAll || is_at_end || (part == Part::kEnds && pass.slot < begin);
    auto& of_rank = taken[static_cast<size_t>(pass.rank)];
    const auto slot = moves ? first_fit(pass, most, of_rank) : pass.slot;
    rows(pass.rank)[pass.row][pass.index] = slot;
    for (int64_t i = 0; i < length(pass.row); ++i) {
      of_rank.insert(slot + i);
    }
  }
}

void Timeline::place_weights() {
  for (Rows& of_rank : ranks_) {
    of_rank[kWeightRow] = weight_slots(of_rank);
  }
}

void Timeline::drop_weights() {
  for (Rows& of_rank : ranks_) {
    of_rank[kWeightRow].clear();
  }
}

void Timeline::squeeze() {
  std::vector<int64_t> free_from(ranks_.size(), 0);
  for (const Pass& pass : all_passes()) {  // what a pass needs stands before it, and has its new slot
    auto& now = free_from[static_cast<size_t>(pass.rank)];
    const auto slot = pass.row == kWeightRow ? now : std::max(now, end_of_need(pass));
    rows(pass.rank)[pass.row][pass.index] = slot;
    now = slot + length(pass.row);
  }
}

Schedule Timeline::schedule() const {
  Schedule made{.rank_of_stage = v_of_stages(num_ranks()), .micro_batches = micro_batches_};
  const auto backward = weights_ == Weights::kApart ? ActionKind::kInput : ActionKind::kBackward;
  for (int64_t rank = 0; rank < num_ranks(); ++rank) {
    std::vector<Action> actions;
    std::deque<Action> waiting;
    for (const Pass& pass : passes_of(rank)) {
      if (pass.row == kWeightRow) {
        actions.push_back({ActionKind::kWeight, waiting.front().stage, waiting.front().micro_batch});
        waiting.pop_front();
        continue;
      }
      const bool is_down = pass.row == 0 || pass.row == 3;
      actions.push_back({pass.row < 2 ? ActionKind::kForward : backward, is_down ? rank : 2 * num_ranks() - 1 - rank,
                         static_cast<int64_t>(pass.index)});
      if (pass.row >= 2) {
        waiting.push_back(actions.back());
      }
    }
    made.ranks.push_back(std::move(actions));
  }
  return made;
}

}  // namespace tessera::schedule
