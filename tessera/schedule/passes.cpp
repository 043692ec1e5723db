#include "tessera/schedule/passes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/schedule/results.h"

namespace tessera::schedule {
namespace {

void verify_lacks(const Schedule& schedule, ActionKind kind) {
  TESSERA_CHECK_AS(PlanError, !schedule.has(kind), "[schedule] the schedule has ", name_of(kind),
                   " already; accepted: one without");
}

// The schedule with each rank's actions replaced by `change(actions)`.
template <typename Change>
Schedule with_each_rank(Schedule schedule, Change change) {
  for (auto& actions : schedule.ranks) {
    actions = change(actions);
  }
  return schedule;
}

// The send that belongs behind a pass.
std::optional<Action> try_send_behind(const Schedule& schedule, const Action& pass) {
  if (pass.kind == ActionKind::kForward && schedule.sends_forward(pass.stage)) {
    return Action{ActionKind::kSendForward, pass.stage, pass.micro_batch};
  }
  const bool is_backward = pass.kind == ActionKind::kBackward || pass.kind == ActionKind::kInput;
  if (is_backward && schedule.sends_backward(pass.stage)) {
    return Action{ActionKind::kSendBackward, pass.stage, pass.micro_batch};
  }
  return std::nullopt;
}

// The other end of a message, and the pass for which it comes: it is of that pass's stage.
Action receive_of(const Action& send) {
  return send.kind == ActionKind::kSendForward ? Action{ActionKind::kReceiveForward, send.stage + 1, send.micro_batch}
                                               : Action{ActionKind::kReceiveBackward, send.stage - 1, send.micro_batch};
}

// Where on its rank each result of another rank is read: (stage, micro-batch, whether by backward) to position.
using ReadAt = std::map<std::tuple<int64_t, int64_t, bool>, size_t>;

ReadAt reads_of(const std::vector<Action>& actions) {
  ReadAt at;
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto kind = actions[i].kind;
    if (kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kInput) {
      at.emplace(std::tuple(actions[i].stage, actions[i].micro_batch, kind != ActionKind::kForward), i);
    }
  }
  return at;
}

// Of one rank: the receives that stand before each of its actions.
std::vector<std::vector<Action>> receives_of(const Schedule& schedule, int64_t rank,
                                             const std::vector<std::vector<Action>>& sends) {
  const auto reads = reads_of(schedule.ranks[static_cast<size_t>(rank)]);
  std::vector<std::vector<Action>> before(schedule.ranks[static_cast<size_t>(rank)].size());
  for (const auto& of_rank : sends) {  // of one sender: the last first, as the later ones bound those before them
    auto bound = before.size();
    for (auto send = of_rank.rbegin(); send != of_rank.rend(); ++send) {
      const Action receive = receive_of(*send);
      if (schedule.rank_of_stage[static_cast<size_t>(receive.stage)] != rank) {
        continue;
      }
      const auto read = reads.find({receive.stage, receive.micro_batch, receive.kind == ActionKind::kReceiveBackward});
      TESSERA_CHECK_AS(PlanError, read != reads.end(), "[schedule] rank ", rank, " has no pass that needs ", receive);
      bound = std::min(bound, read->second);
      before[bound].insert(before[bound].begin(), receive);
    }
  }
  return before;
}

// How far the next pass of a stage is behind a position.
size_t next_use(const std::vector<Action>& actions, size_t from, int64_t stage) {
  while (from < actions.size() &&
         !(is_compute(actions[from].kind) && !is_of_vocabulary(actions[from].kind) && actions[from].stage == stage)) {
    ++from;
  }
  return from;
}

std::vector<Action> with_gathers(const std::vector<Action>& actions, int64_t most) {
  std::vector<Action> all;
  std::set<int64_t> whole;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool is_pass = is_compute(action.kind) && !is_of_vocabulary(action.kind);
    if (is_pass && whole.count(action.stage) == 0) {
      if (most > 0 && static_cast<int64_t>(whole.size()) == most) {
        const auto farthest = *std::max_element(whole.begin(), whole.end(), [&](int64_t a, int64_t b) {
          return next_use(actions, i, a) < next_use(actions, i, b);
        });
        whole.erase(farthest);
        all.push_back({ActionKind::kFree, farthest});
      }
      whole.insert(action.stage);
      all.push_back({ActionKind::kGather, action.stage});
    }
    all.push_back(action);
    if (is_pass && next_use(actions, i + 1, action.stage) == actions.size()) {
      whole.erase(action.stage);
      all.push_back({ActionKind::kFree, action.stage});
    }
  }
  return all;
}

bool makes_weight_gradient(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeight;
}

}  // namespace

Schedule add_communication(const Schedule& schedule) {
  TESSERA_CHECK_AS(PlanError, !schedule.has_communication(),
                   "[schedule] the schedule has sends or receives already; accepted: one without");
  std::vector<std::vector<Action>> sends(schedule.ranks.size());
  for (size_t rank = 0; rank < sends.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (const auto send = try_send_behind(schedule, action)) {
        sends[rank].push_back(*send);
      }
    }
  }
  Schedule lowered = schedule;
  for (size_t rank = 0; rank < sends.size(); ++rank) {
    const auto before = receives_of(schedule, static_cast<int64_t>(rank), sends);
    auto& actions = lowered.ranks[rank];
    actions.clear();
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      actions.insert(actions.end(), before[i].begin(), before[i].end());
      actions.push_back(action);
      if (const auto send = try_send_behind(schedule, action)) {
        actions.push_back(*send);
      }
    }
  }
  return lowered;
}

Schedule add_gathers(const Schedule& schedule, int64_t most) {
  TESSERA_CHECK_AS(PlanError, most >= 0, "[schedule] at most ", most,
                   " stages gathered; accepted: 1 or more, 0 for all");
  verify_lacks(schedule, ActionKind::kGather);
  return with_each_rank(schedule, [most](const auto& actions) { return with_gathers(actions, most); });
}

Schedule add_reduces(const Schedule& schedule) {
  verify_lacks(schedule, ActionKind::kReduce);
  return with_each_rank(schedule, [](const std::vector<Action>& actions) {
    std::vector<Action> all;
    for (size_t i = 0; i < actions.size(); ++i) {
      all.push_back(actions[i]);
      const auto is_another = [&](const Action& later) {
        return makes_weight_gradient(later) && later.stage == actions[i].stage;
      };
      if (makes_weight_gradient(actions[i]) &&
          std::none_of(actions.begin() + static_cast<std::ptrdiff_t>(i) + 1, actions.end(), is_another)) {
        all.push_back({ActionKind::kReduce, actions[i].stage});
      }
    }
    return all;
  });
}

Schedule add_recompute(const Schedule& schedule) {
  verify_lacks(schedule, ActionKind::kRecompute);
  return with_each_rank(schedule, [](const std::vector<Action>& actions) {
    std::vector<Action> all;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kInput) {
        all.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
      }
      all.push_back(action);
    }
    return all;
  });
}

Schedule split_backward(const Schedule& schedule) {
  return with_each_rank(schedule, [](const std::vector<Action>& actions) {
    std::vector<Action> all;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kBackward) {
        all.push_back({ActionKind::kInput, action.stage, action.micro_batch});
        all.push_back({ActionKind::kWeight, action.stage, action.micro_batch});
      } else {
        all.push_back(action);
      }
    }
    return all;
  });
}

Schedule merge_backward(const Schedule& schedule) {
  return with_each_rank(schedule, [](const std::vector<Action>& actions) {
    std::vector<Action> all;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kWeight && !all.empty() &&
          all.back() == Action{ActionKind::kInput, action.stage, action.micro_batch}) {
        all.back().kind = ActionKind::kBackward;
      } else {
        all.push_back(action);
      }
    }
    return all;
  });
}

Schedule only_compute(const Schedule& schedule) {
  return with_each_rank(schedule, [](std::vector<Action> actions) {
    std::erase_if(actions, [](const Action& action) { return !is_compute(action.kind); });
    return actions;
  });
}

}  // namespace tessera::schedule
