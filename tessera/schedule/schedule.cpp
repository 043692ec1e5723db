#include "tessera/schedule/schedule.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::schedule {
namespace {

constexpr std::string_view kOverlapped = ")OVERLAP_F_B";
constexpr std::string_view kWait = "WAIT_";

// Whether the cell is a wait for a send or a reduction.
bool is_wait(std::string_view text) {
  const size_t at = text.find(kWait);
  if (at == std::string_view::npos) {
    return false;
  }
  const auto action = try_parse_action(c10::str(text.substr(0, at), text.substr(at + kWait.size())));
  return action && (is_send(action->kind) || action->kind == ActionKind::kReduce);
}

std::string wait_for(const Action& action) {
  std::string text = to_string(action);
  return text.insert(std::to_string(action.stage).size(), kWait);
}

Action parse_cell(std::string_view text, int64_t rank, size_t cell) {
  const auto action = try_parse_action(base::trim(text));
  TESSERA_CHECK_AS(PlanError, action, "[schedule] row ", rank, ", cell ", cell, ": \"", base::trim(text),
                   "\" is no action; accepted: stage, kind and micro-batch, as 2F0, 1SEND_B3 or 0UNSHARD");
  return *action;
}

std::vector<Action> parse_row(std::string_view row, int64_t rank) {
  std::vector<Action> actions;
  const auto cells = base::split(row, ',');
  for (size_t i = 0; i < cells.size(); ++i) {
    auto cell = base::trim(cells[i]);
    if (cell.empty() || is_wait(cell)) {
      continue;
    }
    if (!cell.starts_with('(') || !cell.ends_with(kOverlapped)) {
      actions.push_back(parse_cell(cell, rank, i));
      continue;
    }
    cell = cell.substr(1, cell.size() - 1 - kOverlapped.size());
    for (const auto& part : base::split(cell, ';')) {
      actions.push_back(parse_cell(part, rank, i));
    }
  }
  return actions;
}

// Numbers beyond what so many actions can be of would only cost memory.
void verify_extent(const Schedule& schedule) {
  int64_t count = 0;
  for (const auto& actions : schedule.ranks) {
    count += static_cast<int64_t>(actions.size());
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      TESSERA_CHECK_AS(PlanError, std::max(action.stage, action.micro_batch) < count, "[schedule] row ", rank, ": ",
                       action, " in a schedule of ", count, " actions; accepted: numbers below that");
    }
  }
}

void find_sizes(Schedule& schedule) {
  constexpr int64_t kNobody = -1;
  for (int64_t rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const Action& action : schedule.ranks[static_cast<size_t>(rank)]) {
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
      if (is_of_vocabulary(action.kind)) {
        continue;
      }
      const auto stage = static_cast<size_t>(action.stage);
      if (stage >= schedule.rank_of_stage.size()) {
        schedule.rank_of_stage.resize(stage + 1, kNobody);
      }
      if (action.kind == ActionKind::kForward && schedule.rank_of_stage[stage] == kNobody) {
        schedule.rank_of_stage[stage] = rank;
      }
    }
  }
  for (size_t stage = 0; stage < schedule.rank_of_stage.size(); ++stage) {
    TESSERA_CHECK_AS(PlanError, schedule.rank_of_stage[stage] != kNobody, "[schedule] no rank runs ", stage,
                     "F, but stage ", schedule.rank_of_stage.size() - 1, " has actions; accepted: every stage's");
  }
}

}  // namespace

std::vector<int64_t> Schedule::stages_of(int64_t rank) const {
  std::vector<int64_t> stages;
  for (int64_t stage = 0; stage < num_stages(); ++stage) {
    if (rank_of_stage[static_cast<size_t>(stage)] == rank) {
      stages.push_back(stage);
    }
  }
  return stages;
}

bool Schedule::has(ActionKind kind) const {
  return std::any_of(ranks.begin(), ranks.end(), [kind](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [kind](const Action& action) { return action.kind == kind; });
  });
}

bool Schedule::has_communication() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return is_send(action.kind) || is_receive(action.kind); });
  });
}

std::vector<int64_t> loop_of_stages(int64_t ranks, int64_t per_rank) {
  std::vector<int64_t> rank_of_stage;
  for (int64_t stage = 0; stage < ranks * per_rank; ++stage) {
    rank_of_stage.push_back(stage % ranks);
  }
  return rank_of_stage;
}

std::vector<int64_t> v_of_stages(int64_t ranks) {
  std::vector<int64_t> rank_of_stage;
  for (int64_t stage = 0; stage < 2 * ranks; ++stage) {
    rank_of_stage.push_back(std::min(stage, 2 * ranks - 1 - stage));
  }
  return rank_of_stage;
}

std::string to_csv(const Schedule& schedule) {
  std::ostringstream out;
  out << schedule;
  return out.str();
}

std::string to_csv_with_waits(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.ranks) {
    std::vector<std::string> cells;
    std::vector<Action> sent;  // and not waited for
    for (const Action& action : actions) {
      cells.push_back(to_string(action));
      if (action.kind == ActionKind::kReduce) {
        cells.push_back(wait_for(action));
      } else if (is_send(action.kind)) {
        sent.push_back(action);
      } else if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kInput) {
        const Action output = {ActionKind::kSendForward, action.stage, action.micro_batch};
        if (std::erase(sent, output) > 0) {
          cells.push_back(wait_for(output));
        }
      }
    }
    for (const Action& action : sent) {
      cells.push_back(wait_for(action));
    }
    text += base::join(cells, ",") + "\n";
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    out << base::join(actions, ",") << "\n";
  }
  return out;
}

Schedule parse_csv(std::string_view text, int64_t barriers) {
  Schedule schedule;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  for (const auto& row : base::split(text, '\n')) {
    schedule.ranks.push_back(parse_row(row, schedule.num_ranks()));
  }
  verify_extent(schedule);
  find_sizes(schedule);
  schedule.barriers = schedule.has(ActionKind::kHead) ? barriers : 0;
  return schedule;
}

}  // namespace tessera::schedule
