#include "tessera/schedule/vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/schedule/results.h"

namespace tessera::schedule {
namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();
constexpr int64_t kEmbedsAhead = 2;

// The order in which they go where several could.
constexpr std::array kParts = {ActionKind::kEmbed, ActionKind::kHead, ActionKind::kHeadBackward,
                               ActionKind::kEmbedBackward};

class Placement {
 public:
  Placement(const Schedule& passes, int64_t barriers)
      : passes_(passes), made_(without_actions(passes, barriers)), ends_(made_, kNotYet), ranks_(passes.ranks.size()) {}

  Schedule run() {
    while (!is_done()) {
      // All parts that can be done now, on all ranks, before any rank is busy again.
      if (!any_rank([this](int64_t rank) { return try_part(rank); }) &&
          !any_rank([this](int64_t rank) { return try_pass(rank); })) {
        advance();
      }
    }
    return std::move(made_);
  }

 private:
  struct Rank {
    size_t position = 0;                           // of its next pass that is not of the vocabulary
    std::array<int64_t, kParts.size()> next = {};  // micro-batch of each part
    int64_t free_from = 0;
  };

  static Schedule without_actions(const Schedule& passes, int64_t barriers) {
    Schedule made = passes;
    made.barriers = barriers;
    std::for_each(made.ranks.begin(), made.ranks.end(), [](auto& actions) { actions.clear(); });
    return made;
  }

  bool is_done() const {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const auto& next = ranks_[i].next;
      const bool has_parts =
          std::any_of(next.begin(), next.end(), [this](int64_t k) { return k < made_.micro_batches; });
      if (has_parts || ranks_[i].position < passes_.ranks[i].size()) {
        return false;
      }
    }
    return true;
  }

  bool can_begin(const Action& action) {
    const auto needs = needs_of(made_, action);
    return std::all_of(needs.begin(), needs.end(), [this](const Result& need) { return ends_[need] <= now_; });
  }

  // Whether a rank that is free did something.
  template <typename Try>
  bool any_rank(Try try_it) {
    bool moves = false;
    for (int64_t rank = 0; rank < made_.num_ranks(); ++rank) {
      moves = (ranks_[static_cast<size_t>(rank)].free_from <= now_ && try_it(rank)) || moves;
    }
    return moves;
  }

  bool try_part(int64_t rank) {
    auto& next = ranks_[static_cast<size_t>(rank)].next;
    for (size_t i = 0; i < kParts.size(); ++i) {
      const Action part{kParts[i], rank, next[i]};
      const bool is_early = part.kind == ActionKind::kEmbed && next[i] >= forwards_begun_ + kEmbedsAhead;
      if (next[i] < made_.micro_batches && !is_early && can_begin(part)) {
        ++next[i];
        add(rank, part, 0);
        return true;
      }
    }
    return false;
  }

  bool try_pass(int64_t rank) {
    const auto& passes = passes_.ranks[static_cast<size_t>(rank)];
    auto& position = ranks_[static_cast<size_t>(rank)].position;
    if (position == passes.size() || !can_begin(passes[position])) {
      return false;
    }
    const Action& pass = passes[position++];
    forwards_begun_ += pass.kind == ActionKind::kForward && pass.stage == 0 ? 1 : 0;
    add(rank, pass, pass.kind == ActionKind::kBackward ? 2 : 1);
    return true;
  }

  void add(int64_t rank, const Action& action, int64_t slots) {
    made_.ranks[static_cast<size_t>(rank)].push_back(action);
    for (const Result& result : results_of(action)) {
      ends_[result] = now_ + slots;
    }
    ranks_[static_cast<size_t>(rank)].free_from = now_ + slots;
  }

  // To when the next rank is free.
  void advance() {
    auto next = kNotYet;
    for (const Rank& rank : ranks_) {
      if (rank.free_from > now_) {
        next = std::min(next, rank.free_from);
      }
    }
    TESSERA_CHECK_AS(PlanError, next != kNotYet,
                     "[schedule] passes of the vocabulary in a schedule whose ranks wait for each other; accepted: one "
                     "that verify_schedule does not refuse");
    now_ = next;
  }

  const Schedule& passes_;
  Schedule made_;
  ResultTable<int64_t> ends_;  // in slots
  std::vector<Rank> ranks_;
  int64_t now_ = 0, forwards_begun_ = 0;
};

bool is_plain_pass(const Action& action) {
  return is_compute(action.kind) && !is_of_vocabulary(action.kind) && action.kind != ActionKind::kRecompute;
}

}  // namespace

Schedule add_vocabulary(const Schedule& schedule, int64_t barriers) {
  TESSERA_CHECK_AS(PlanError, barriers == 1 || barriers == 2, "[schedule] embedding and head cut over ranks by ",
                   barriers, " barriers; accepted: 1 or 2");
  const bool is_plain =
      schedule.chains == 1 && schedule.barriers == 0 &&
      std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [](const std::vector<Action>& actions) {
        return std::all_of(actions.begin(), actions.end(), is_plain_pass);
      });
  TESSERA_CHECK_AS(PlanError, is_plain,
                   "[schedule] passes of the vocabulary are added to F, B, I and W of one chain of stages; accepted: a "
                   "schedule without other actions");
  return Placement(schedule, barriers).run();
}

}  // namespace tessera::schedule
