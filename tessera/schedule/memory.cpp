#include "tessera/schedule/memory.h"

#include <algorithm>
#include <set>

namespace tessera::schedule {
namespace {

double peak_of(const std::vector<Action>& actions) {
  std::set<std::pair<int64_t, int64_t>> recomputed;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kRecompute) {
      recomputed.emplace(action.stage, action.micro_batch);
    }
  }
  int64_t live = 0, peak = 0;
  for (const Action& action : actions) {
    const bool is_forward =
        action.kind == ActionKind::kForward && recomputed.count({action.stage, action.micro_batch}) == 0;
    if (is_forward || action.kind == ActionKind::kRecompute) {
      peak = std::max(peak, ++live);
    } else if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeight) {
      --live;
    }
  }
  return static_cast<double>(peak);
}

}  // namespace

double share_of_stage(const Schedule& schedule) {
  return static_cast<double>(schedule.num_ranks()) / static_cast<double>(schedule.chain_length());
}

std::vector<double> peaks_of(const Schedule& schedule) {
  std::vector<double> peaks;
  for (const auto& actions : schedule.ranks) {
    peaks.push_back(peak_of(actions) * static_cast<double>(schedule.num_ranks()) /
                    static_cast<double>(schedule.chain_length()));
  }
  return peaks;
}

}  // namespace tessera::schedule
